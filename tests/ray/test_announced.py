"""What replicas announce becomes settings of engines, or an error that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.config import EngineSettings
from inferway.errors import ConfigError
from inferway_ray.announced import AnnouncedReplica, announced

URL = "http://10.0.0.5:8000"
# As Ray 2.60's LLM deployments announce it (kv_aware/vllm/kv_events.py).
STATS = {
    "kv_event_metadata": {
        "endpoint": "tcp://10.0.0.5:5557",
        "block_size": 32,
        "max_num_batched_tokens": 8192,
        "dp_rank": 1,
        "replay_endpoint": "tcp://10.0.0.5:6557",
    },
    "kv_token_metadata": {"endpoint": "tcp://10.0.0.5:7557"},
}


def test_an_engine_that_is_given_is_asked_itself_for_the_rest() -> None:
    found = announced("abc", {"engine": URL}, STATS)

    assert found.engine == EngineSettings(url=URL, name="abc")


def test_routing_stats_may_have_it_too_and_more_than_a_url() -> None:
    found = announced("abc", {}, {"engine": f"{URL},block_size=32"})

    assert found.engine == EngineSettings(url=URL, name="abc", block_size=32)


def test_direct_streaming_has_http_and_rays_form_has_the_sockets() -> None:
    found = announced("abc", {}, STATS, ("10.0.0.5", 30001))

    assert found.engine == EngineSettings(
        url="http://10.0.0.5:30001",
        name="abc",
        events="tcp://10.0.0.5:5557",
        replay="tcp://10.0.0.5:6557",
        block_size=32,
    )


def test_an_engine_inside_its_replica_has_sockets_alone() -> None:
    found = announced("abc", {}, STATS, adapters=["b", "a"])

    assert found.engine is None
    assert found.events is not None
    assert found.events.dp_rank == 1
    assert found.adapters == ("a", "b")


def test_http_without_sockets_is_no_engine_yet() -> None:
    assert announced("abc", {}, {}, ("10.0.0.5", 30001)) == AnnouncedReplica("abc")


@pytest.mark.parametrize(
    ("metadata", "stats", "said"),
    [
        ({"engine": 5}, {}, r"replica abc: engine: 5: expected a text"),
        ({"engine": "10.0.0.5:8000"}, {}, r"replica abc: engine: .*expected http://HOST:PORT"),
        ({"engine": f"{URL},colour=red"}, {}, r"replica abc: engine .*'colour=red'"),
        ({}, {"kv_event_metadata": {"endpoint": "tcp://h:1"}}, r"block_size"),
        ({}, {"kv_event_metadata": {"endpoint": "tcp://h:1", "block_size": 0}}, r"block_size: 0"),
    ],
)
def test_what_cannot_hold_is_named(
    metadata: dict[str, Any], stats: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        announced("abc", metadata, stats)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(engine=JSON, events=JSON)
def test_whatever_a_replica_says_is_settings_or_a_config_error(engine: Any, events: Any) -> None:
    try:
        announced("abc", {"engine": engine}, {"kv_event_metadata": events}, ("h", 1))
    except ConfigError as e:
        said = str(e)
    else:
        return

    assert said.startswith(("replica abc", "engine abc"))
