"""Settings -> how endpoints are chosen; types that other packages bring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.scheduling.tables import kv_aware
from tests.scheduling.test_profile import REQUEST, table

from inferway.errors import ConfigError
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.load import DEFAULT, ENTRY_POINTS, KnownTypes, load_scheduling

MODULE = """
import numpy as np
from inferway.scheduling.registry import PluginType

class LastRow:
    def score(self, request, candidates):
        size = len(candidates.endpoints)
        return np.where(np.arange(size) == size - 1, 1000.0, 0.0)

TYPE = PluginType("last-row", "", lambda parameters, building: LastRow())
TAKEN = PluginType("queue-scorer", "", lambda parameters, building: LastRow())
NONE = 3
"""


def package(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    module: str = MODULE,
    *,
    group: str = ENTRY_POINTS,
    **types: str,
) -> None:
    """Somebody's installed package with plugin types: entry point -> name in its module."""
    (directory / "somebodys_plugin.py").write_text(module)
    values = {name.replace("_", "-"): f"somebodys_plugin:{its}" for name, its in types.items()}
    info = directory / "somebodys_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-plugin\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in values.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "somebodys_plugin", raising=False)  # another test's


def test_an_installed_package_brings_a_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(monkeypatch, tmp_path, last_row="TYPE")

    scheduling = load_scheduling({"plugins": [{"type": "last-row"}, {"type": "queue-scorer"}]})

    chosen = scheduling.chooser.choose(REQUEST, table(size=3)).targets
    assert chosen[0].endpoint.engine == "e2"
    assert chosen[0].score <= 2.0  # what it says beyond 1 counts as 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("NONE", "is a int, not a PluginType"),
        ("TAKEN", "plugin type 'queue-scorer' is there already"),
        ("GONE", "somebodys_plugin:GONE cannot be loaded"),
    ],
)
def test_a_package_that_brings_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, says: str
) -> None:
    package(monkeypatch, tmp_path, last_row=value)

    with pytest.raises(ConfigError, match="entry point 'last-row' of somebodys-plugin") as caught:
        len(KnownTypes())

    assert says in str(caught.value)


def test_a_file_is_read_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "epp.yaml"
    path.write_text("kind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n")

    targets = load_scheduling(str(path)).chooser.choose(REQUEST, table(size=2)).targets

    assert len(targets) == 2
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read"):
        load_scheduling(str(tmp_path / "gone.yaml"))


VALUES = """
router:
  epp:
    replicas: 1
    {0}
    pluginsCustomConfig:
      other.yaml: "[]"
      mine.yaml: |
        apiVersion: llm-d.ai/v1
        kind: EndpointPickerConfig
        plugins: [{{type: {1}}}]
  modelServers: {{}}
"""


def values(directory: Path, key: str, plugin: str = "queue-scorer") -> str:
    path = directory / "guide.values.yaml"
    path.write_text(VALUES.format(key, plugin))
    return str(path)


def test_of_a_chart_s_values_the_picker_s_configuration_is_read(tmp_path: Path) -> None:
    scheduling = load_scheduling(values(tmp_path, "pluginsConfigFile: mine.yaml"))

    assert len(scheduling.chooser.choose(REQUEST, table(size=2)).targets) == 2


@pytest.mark.parametrize(
    ("key", "plugin", "says"),
    [
        (
            "pluginsConfigFile: mine.yaml",
            "warp",
            "guide.values.yaml: router.epp.pluginsCustomConfig.mine.yaml: plugins[0].type: 'warp'",
        ),
        ("pluginsConfigFile: theirs.yaml", "warp", "'theirs.yaml' is not in pluginsCustomConfig"),
        ("pluginsConfigFile: other.yaml", "warp", "pluginsCustomConfig.other.yaml: expected keys"),
        ("pluginsConfigFile: 7", "warp", "guide.values.yaml: router: "),
    ],
)
def test_what_cannot_be_used_of_values_is_named(
    tmp_path: Path, key: str, plugin: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scheduling(values(tmp_path, key, plugin))

    assert says in str(caught.value)


def test_by_default_it_is_expected_milliseconds_and_equals_take_turns() -> None:
    scheduling, candidates = load_scheduling(None), table(size=4)
    (producer,) = scheduling.producers

    chosen = set()
    for _ in range(4):
        producer.produce(REQUEST, candidates)
        chosen.add(scheduling.chooser.choose(REQUEST, candidates).targets[0].endpoint.engine)

    assert isinstance(producer, ExpectedTtft)
    assert scheduling.following == [producer]
    assert chosen == {"e0", "e1", "e2", "e3"}


def test_the_documented_weights_choose_as_kv_aware_does() -> None:
    (documented,) = [given for given in documented_yaml() if "relative-load" in given]
    scheduling = load_scheduling(msgspec.yaml.decode(documented)["scheduling"])
    random = Random(2)

    for _ in range(50):
        some: dict[str, Any] = {
            name: [random.randrange(10) for _ in range(4)] for name in ("matched", "load")
        }
        candidates = table(**some, recent=[random.randrange(3_000) for _ in range(4)])
        assert (
            scheduling.chooser.choose(REQUEST, candidates).targets
            == kv_aware().choose(REQUEST, candidates).targets
        )


def test_the_documented_default_is_the_default() -> None:
    first = next(documented_yaml())

    assert msgspec.yaml.decode(first) == {"scheduling": DEFAULT}


def documented_yaml() -> Iterator[str]:
    text = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()
    return (part.split("```")[0] for part in text.split("```yaml\n")[1:])
