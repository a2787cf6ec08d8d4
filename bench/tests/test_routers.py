"""How routers are started, and how their own counters are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway_bench.processes import BenchError, Venv
from inferway_bench.routers import (
    Dynamo,
    EngineAddress,
    Inferway,
    Place,
    Smg,
    VllmRouter,
    added,
    by_label,
    chosen,
    is_known,
    read_metrics,
    since,
    total,
)

PEERS = Venv(Path("/peers"))
ENGINES = [EngineAddress("http://127.0.0.1:1", "tcp://127.0.0.1:2")]
PLACE = Place(port=3, metrics_port=4, engines=ENGINES, model="m", directory=Path("/tmp/x"))

METRICS = """\
# HELP lookups_total of something
# TYPE lookups_total counter
lookups_total{result="hit",rank="0"} 3
lookups_total{result="hit",rank="1"} 4
lookups_total{result="miss",rank="0"} 1.0
other 5
"""


def test_metrics_are_read_summed_and_split_by_a_label() -> None:
    metrics = read_metrics(METRICS)

    assert total(metrics, "lookups_total") == 8
    assert by_label(metrics, "lookups_total", "result") == {"hit": 7, "miss": 1}


def test_counters_are_compared_with_an_earlier_reading() -> None:
    before = {"other": 2.0}

    assert since(before, read_metrics("other 5\nnew 1\n")) == {"other": 3.0, "new": 1.0}


def test_what_was_counted_in_parts_is_added() -> None:
    assert added([{"a": 1.0, "b": 2.0}, {"b": 3.0}]) == {"a": 1.0, "b": 5.0}


def names(*only: str) -> list[str]:
    routers = [Inferway(scoring=True), Inferway(scoring=False)]
    return [router.label for router in chosen(routers, only)]


def test_a_whole_name_means_that_router_alone() -> None:
    assert names("inferway serve") == ["inferway serve"]
    assert names("inferway") == ["inferway serve", "inferway serve --no-scoring"]
    assert names("no-scoring") == ["inferway serve --no-scoring"]
    assert names() == ["inferway serve", "inferway serve --no-scoring"]


def test_a_router_that_is_not_there_is_said() -> None:
    with pytest.raises(BenchError, match="--only nginx: no such router; there are inferway serve,"):
        names("nginx")


def test_ours_is_started_with_its_engines_and_an_access_log() -> None:
    command = Inferway(scoring=True).command(PLACE)

    assert Path(command[0]).name == "inferway"
    assert command[1] == "serve"
    assert "--no-scoring" not in command
    assert command[command.index("--engine") + 1] == "http://127.0.0.1:1"
    assert command[command.index("--access-log") + 1] == "/tmp/x/access.log"


def test_vllm_router_gets_its_event_sources_by_hand_when_it_is_to_use_them() -> None:
    kv_aware = VllmRouter(PEERS, "kv_aware").command(PLACE)
    round_robin = VllmRouter(PEERS, "round_robin").command(PLACE)

    assert "http://127.0.0.1:1=tcp://127.0.0.1:2" in kv_aware
    assert "--kv-event-source" not in round_robin


def test_peers_are_started_from_their_own_venv() -> None:
    command = Smg(PEERS, "cache_aware").command(PLACE)

    assert command[:4] == ["/peers/bin/smg", "launch", "--policy", "cache_aware"]
    assert command[-2:] == ["--worker-urls", "http://127.0.0.1:1"]


def test_dynamo_gets_a_worker_for_each_engine_and_its_events() -> None:
    python, _, script, settings = Dynamo(PEERS, "kv").command(PLACE)

    assert python == "/peers/bin/python"
    assert Path(script).is_file()
    told = json.loads(settings)
    assert told["engines"] == [["http://127.0.0.1:1", "tcp://127.0.0.1:2"]]
    assert told["frontend"][:2] == ["--router-mode", "kv"]


def test_evidence_of_dynamo_is_what_it_matched_at_the_engine_that_it_took() -> None:
    of = "dynamo_component_router"
    counted = {
        f'{of}_input_sequence_tokens_sum{{model="m"}}': 200.0,
        f'{of}_kv_selected_cached_prefix_tokens_total{{model="m"}}': 90.0,
        f'{of}_kv_best_eligible_cached_prefix_tokens_total{{model="m"}}': 150.0,
    }

    said = Dynamo(PEERS, "kv").evidence(counted)

    assert "45.0% of the tokens matched at the engine that it took, 75.0% at the best" in said


def test_text_that_is_compared_is_no_match_of_tokens() -> None:
    assert Smg(PEERS, "cache_aware").evidence({}).startswith("prompts compared as text")
    assert Smg(PEERS, "round_robin").evidence({}) == "prompts not looked at"


@pytest.mark.parametrize(
    ("state", "replay", "known"),
    [
        ("exact", "tcp://e:2", True),
        ("partial", "tcp://e:2", True),
        ("repairing", "tcp://e:2", False),
        ("blind", "tcp://e:2", False),
        ("blind", None, True),
    ],
)
def test_an_engine_is_known_when_what_it_has_told_is_read(
    state: str, replay: str | None, known: bool
) -> None:
    exact = {"state": "exact", "replay": "tcp://e:1"}
    engine = {"healthy": True, "streams": [exact, {"state": state, "replay": replay}]}

    assert is_known(engine) is known
    assert not is_known({**engine, "healthy": False})


def test_evidence_of_ours_is_the_share_of_matched_tokens() -> None:
    counted = {
        'inferway_prompt_tokens_total{engine="a"}': 800.0,
        'inferway_matched_tokens_total{engine="a"}': 600.0,
    }

    assert "75.0% of the tokens matched" in Inferway(scoring=True).evidence(counted)


def test_evidence_tells_whether_vllm_router_had_tokens_at_all() -> None:
    router = VllmRouter(PEERS, "kv_aware")
    inputs = 'vllm_router_kv_routing_inputs_total{transport="http",result="%s"}'
    lookups = 'vllm_router_kv_placement_lookups_total{result="hit"}'

    rendered = router.evidence({inputs % "render": 20.0, lookups: 10.0})
    refused = router.evidence({inputs % "render_unavailable": 20.0})
    no_lookups = router.evidence({inputs % "render": 20.0})

    assert rendered.endswith("2.0 calls of the engines' /render a request; 100% of its lookups hit")
    assert refused.startswith("did not tokenize (render_unavailable)")
    assert "20 calls of the engines' /render; compares with a tree" in no_lookups
