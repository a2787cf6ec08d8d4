"""What an engine says of itself, as vLLM 0.32 says it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.fleet.engine_client import MAX_PAGE_BYTES
from inferway.fleet.engine_facts import (
    FIRST_SECONDS,
    MAX_BASE_MODELS,
    MAX_CARD_FINDINGS,
    MAX_MODELS,
    MAX_RANKS,
    MAX_SOURCES_BYTES,
    MOST_SECONDS,
    FactsAge,
    ModelCard,
    NoEngineError,
    number_in,
    parse_cache_labels,
    parse_models,
    resolve_sources,
)
from inferway.fleet.event_source import EventSource


def sources(endpoint: str, replay: str | None = None, rank: int = 0) -> bytes:
    # as GET /kv_event_sources of vLLM 0.32 answers
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "",
    }
    return msgspec.json.encode({str(rank): config})


def test_a_wildcard_is_the_engines_own_host() -> None:
    found, findings = resolve_sources("10.0.0.7", sources("tcp://*:5601", "tcp://*:5602"))

    assert found == (EventSource(0, "tcp://10.0.0.7:5601", "tcp://10.0.0.7:5602"),)
    assert findings == ()


def test_another_host_than_the_engines_is_refused_with_the_flag_to_say_otherwise() -> None:
    found, findings = resolve_sources("10.0.0.7", sources("tcp://10.9.9.9:5557"))

    assert found == ()
    assert "another host than the engine (10.0.0.7)" in findings[0]
    assert "events=tcp://*:5557" in findings[0]


def test_an_endpoint_without_wildcard_says_that_the_engine_may_connect() -> None:
    found, findings = resolve_sources("127.0.0.1", sources("tcp://127.0.0.1:5557"))

    assert found == (EventSource(0, "tcp://127.0.0.1:5557", None),)
    assert "let us bind: --engine URL,events=tcp://*:5557" in findings[0]


def test_a_refused_replay_socket_does_not_cost_the_events() -> None:
    found, findings = resolve_sources("h", sources("tcp://*:5601", "tcp://elsewhere:1"))

    assert found == (EventSource(0, "tcp://h:5601", None),)
    assert "its replay socket tcp://elsewhere:1" in findings[0]


@pytest.mark.parametrize(
    "endpoint", ["tcp://*", "udp://*:1", "tcp://h:0x1", "nonsense", "inproc://x"]
)
def test_a_socket_nobody_could_use_is_a_finding(endpoint: str) -> None:
    found, findings = resolve_sources("h", sources(endpoint))

    assert found == ()
    assert len(findings) == 1


@pytest.mark.parametrize("raw", [b"{}", b'{"0":{"enable_kv_cache_events":false}}'])
def test_an_engine_without_events_is_told_how_to_publish(raw: bytes) -> None:
    found, findings = resolve_sources("h", raw)

    assert found == ()
    assert "--kv-events-config" in findings[0]


def test_each_data_parallel_rank_is_a_source() -> None:
    raw = b'{"1":{"endpoint":"tcp://*:6"},"0":{"endpoint":"tcp://*:5"}}'

    found, _ = resolve_sources("h", raw)

    assert [(s.rank, s.endpoint) for s in found] == [(0, "tcp://h:5"), (1, "tcp://h:6")]


def test_an_adapter_names_its_parent() -> None:
    raw = b'{"object":"list","data":[{"id":"m","root":"/m","max_model_len":4096},'
    raw += b'{"id":"a","root":"/a","parent":"m"}]}'

    assert parse_models(raw) == (
        (ModelCard("m", "/m", None, 4096), ModelCard("a", "/a", "m", None)),
        (),
    )


@pytest.mark.parametrize(
    "bad", ['{"id":"b","root":5}', '{"root":"/b"}', "null", f"{'[' * 600}{']' * 600}"]
)
def test_a_card_that_cannot_be_read_costs_its_model_alone(bad: str) -> None:
    cards, findings = parse_models(f'{{"data":[{{"id":"m"}},{bad},{{"id":"n"}}]}}'.encode())

    assert [card.name for card in cards] == ["m", "n"]
    (finding,) = findings
    assert finding.startswith("/v1/models: data[1] cannot be read, and is not served: ")


def test_many_cards_that_cannot_be_read_are_few_warnings() -> None:
    raw = msgspec.json.encode({"data": [{"id": "m"}, *[{"id": 5}] * 1000]})

    assert len(parse_models(raw)[1]) == MAX_CARD_FINDINGS


def test_something_that_is_no_engine_is_named_so() -> None:
    with pytest.raises(NoEngineError, match="/v1/models is not a list of models"):
        parse_models(b"<html>")
    with pytest.raises(NoEngineError, match="/v1/models is not a list of models"):
        parse_models(b'{"data":[{"id":"\\ud800"}]}')
    with pytest.raises(NoEngineError, match=r"/v1/models: data\[0\] cannot be read"):
        parse_models(b'{"data":[5, 6]}')


@pytest.mark.parametrize(
    ("num_base", "num_adapters", "most"),
    [(MAX_BASE_MODELS + 1, 0, MAX_BASE_MODELS), (1, MAX_MODELS, MAX_MODELS)],
)
def test_more_models_than_an_engine_can_have_are_none(
    num_base: int, num_adapters: int, most: int
) -> None:
    cards = [{"id": f"m{n}"} for n in range(num_base)]
    cards += [{"id": f"a{n}", "parent": "m0"} for n in range(num_adapters)]

    with pytest.raises(NoEngineError, match=f"expected at most {most}; give the URL of one"):
        parse_models(msgspec.json.encode({"data": cards}))
    assert len(parse_models(msgspec.json.encode({"data": cards[:-1]}))[0]) == len(cards) - 1


def test_the_adapters_of_a_large_fleet_have_place_on_a_page() -> None:
    # as vLLM 0.32 tells one
    permission = {
        "id": f"modelperm-{'0' * 32}",
        "object": "model_permission",
        "created": 1_764_000_000,
        **dict.fromkeys(("allow_create_engine", "allow_sampling", "allow_logprobs"), False),
        **dict.fromkeys(("allow_search_indices", "allow_view", "allow_fine_tuning"), False),
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    path = "/mnt/models/adapters/" + 40 * "a"
    card = {"id": path, "object": "model", "created": 1_764_000_000, "owned_by": "vllm"}
    card |= {"root": path, "parent": "m", "max_model_len": None, "permission": [permission]}

    assert MAX_MODELS * len(msgspec.json.encode(card)) < MAX_PAGE_BYTES


def test_more_ranks_than_an_engine_can_have_are_none() -> None:
    one = msgspec.json.decode(sources("tcp://*:5557"))["0"]
    raw = msgspec.json.encode({str(rank): one for rank in range(MAX_RANKS + 1)})

    assert resolve_sources("h", raw) == (
        (),
        (
            f"/kv_event_sources names {MAX_RANKS + 1} ranks; expected at most {MAX_RANKS}; "
            "give the sockets by hand: --engine URL,events=tcp://HOST:PORT",
        ),
    )


def test_sources_without_end_are_not_read() -> None:
    found, (finding,) = resolve_sources("h", b" " * (MAX_SOURCES_BYTES + 1))

    assert found == ()
    assert f"expected at most {MAX_SOURCES_BYTES}; give the sockets by hand" in finding


def test_block_size_and_room_of_a_cache_are_labels_and_not_their_namesakes() -> None:
    metrics = (
        'vllm:cache_config_info{_block_size_resolved="True",block_size="32",engine="0",'
        'mamba_block_size="None",num_gpu_blocks="1456"} 1.0\n'
    )

    cache = parse_cache_labels(metrics)
    assert (number_in(cache, "block_size"), number_in(cache, "num_gpu_blocks")) == (32, 1456)
    assert parse_cache_labels("vllm:other 1\n") == {}
    cache = parse_cache_labels('vllm:cache_config_info{num_gpu_blocks="None"} 1.0\n')
    assert number_in(cache, "num_gpu_blocks") is None


def test_an_engine_of_which_nothing_is_known_is_asked_at_once() -> None:
    assert FactsAge().are_due(0.0)


def test_an_engine_that_has_not_worked_since_it_told_all_is_asked_seldom() -> None:
    age = FactsAge()
    age.told(0.0, is_same=False)

    assert not age.are_due(MOST_SECONDS)
    assert age.are_due(MOST_SECONDS + 1)


def test_an_engine_that_works_and_tells_the_same_is_asked_ever_more_seldom() -> None:
    age, now, pauses = FactsAge(), 0.0, []
    age.told(now, is_same=False)
    for _ in range(5):
        age.has_worked = True
        asked = now
        while not age.are_due(now):
            now += 1.0
        pauses.append(now - asked - 1.0)
        age.told(now, is_same=True)

    assert pauses == [10.0, 40.0, 160.0, 300.0, 300.0]


def test_an_engine_that_tells_something_else_is_asked_soon_again() -> None:
    age = FactsAge(asked=0.0, has_worked=True, holds=160.0)
    age.told(100.0, is_same=False)
    age.has_worked = True

    assert age.are_due(100.0 + FIRST_SECONDS + 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.booleans())
def test_none_is_asked_sooner_or_later_than_it_says(
    told: list[tuple[bool, bool]], has_worked: bool
) -> None:
    age = FactsAge()
    for worked, is_same in told:
        age.has_worked = worked
        age.told(0.0, is_same=is_same)
    age.told(0.0, is_same=True)
    age.has_worked = has_worked

    assert age.are_due(MOST_SECONDS + 1)
    assert not age.are_due(FIRST_SECONDS)


@pytest.mark.parametrize("has_worked", [False, True])
def test_what_may_be_another_engine_is_asked_at_once(has_worked: bool) -> None:
    age = FactsAge(0.0, has_worked, 160.0)
    age.asked = None

    assert age.are_due(1.0)
