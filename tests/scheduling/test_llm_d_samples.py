"""llm-d's own sample configurations, unchanged: each is at work here, or is refused by the name of
what docs/plugins.md says is not built."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scheduling.tables import candidates, request

from inferway.config import read_yaml
from inferway.errors import ConfigError
from inferway.scheduling.config import API_VERSIONS
from inferway.scheduling.load import load_scheduling

FOLDER = Path(__file__).parent / "llm_d"
PLUGINS = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()

# What each is refused for.
REFUSED = {
    "router-burst-prefix-cache": "burst-prefix-cache-producer",
    "router-mm-embeddings-cache": "mm-embeddings-cache-producer",
    "router-pd-topology": "topology-extractor",
    "router-probabilistic-admitter": "flowControl",
    "router-random-passthrough-parser": "passthrough-parser",
    "router-sim-gpu": "dcgm-data-source",
    "router-sim-program-aware": "flowControl",
    "router-soft-reflective-ceiling": "flowControl",
    "scheduler-dp": "data-parallel-profile-handler",
}
SAMPLES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
# One for each role that the samples' filters ask for.
ROLES = ("decode", "prefill", "encode")
FLEET = candidates(
    labels=[*({"llm-d.ai/role": role, "role": role} for role in ROLES), {}],
    matched_blocks=[0, 3, 0, 1],
    weighted_matched_blocks=[0, 3, 0, 1],
    prompt_blocks=5,
)


def sample(name: str) -> str:
    return str(FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in REFUSED])
def test_it_chooses_an_endpoint(name: str) -> None:
    scheduling = load_scheduling(sample(name))
    ask = request(tokens=90)
    for producer in scheduling.producers:
        producer.produce(ask, FLEET)

    choice = scheduling.chooser.choose(ask, FLEET)

    assert choice.targets[0].endpoint in FLEET.endpoints
    assert {admitter.refusal(ask, FLEET) for admitter in scheduling.admitters} == {None}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_the_name_of_what_is_not_built(name: str) -> None:
    what = REFUSED[name]

    with pytest.raises(ConfigError) as caught:
        load_scheduling(sample(name))

    assert str(caught.value).startswith(f"{sample(name)}: ")
    assert f"{what}" in str(caught.value)
    assert "known in llm-d, not built here: " in str(caught.value)
    assert f"`{what}`" in PLUGINS.partition("## Known in llm-d, not built here")[2]


def test_they_are_of_both_api_groups() -> None:
    assert {read_yaml(FOLDER / f"{name}.yaml")["apiVersion"] for name in SAMPLES} == {*API_VERSIONS}
