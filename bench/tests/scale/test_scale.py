"""`inferway bench scale`: parts measured, and what they come to."""

from __future__ import annotations

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway_bench.parts import Part
from inferway_bench.processes import BenchError
from inferway_bench.results import read_run, write_run
from inferway_bench.route_results import Measurement, RouteRun
from inferway_bench.scale.plan import Grown, Plan
from inferway_bench.scale.report import SCALE
from inferway_bench.scale.results import ScaleRun
from inferway_bench.scale.run import carried
from inferway_bench.scale.worker import Events, measure

TINY = Plan(blocks_held=128, prompt_tokens=320, decisions=2, repeats=2)


def grown(engines: int, decision: float) -> Grown:
    return Grown(
        engines=engines, blocks=100, stored_us=4.0, removed_us=1.0, decision_us=[decision] * 3,
        resident_mib=100.0 + engines, bytes_per_block=250.0,
    )  # fmt: skip


def run(*parts: Grown) -> ScaleRun:
    return ScaleRun(
        machine=MACHINE,
        command="inferway bench scale",
        plan=Plan(requests=2.0, new_blocks=10),
        scrape_us=[900.0, 1_000.0, 1_100.0],
        metrics_bytes=20_000,
        request_us=300.0,
        request_from="a stored run",
        grown=list(parts),
    )


def test_shares_are_what_each_part_takes_of_a_second() -> None:
    share = run(grown(50, 100.0)).share(grown(50, 100.0))

    assert share.requests == pytest.approx(100 * 300e-6)
    assert share.decisions == pytest.approx(100 * 100e-6)
    assert share.events == pytest.approx(100 * 10 * 5e-6)
    assert share.scrapes == pytest.approx(50 / 0.2 * 1_000e-6)
    assert share.all == pytest.approx(0.295)


def test_many_engines_are_scraped_500_times_a_second_and_no_more() -> None:
    there = run(grown(200, 1.0))

    assert there.share(grown(200, 1.0)).scrapes == there.share(grown(900, 1.0)).scrapes == 0.5


def test_the_end_is_where_one_core_is_used_up() -> None:
    inside = run(grown(100, 100.0), grown(1_000, 100.0))
    low, high = (share.all for share in inside.shares())
    beyond = run(grown(200, 100.0), grown(400, 100.0))

    assert low < 1 < high
    assert inside.end() == pytest.approx(100 + 900 * (1 - low) / (high - low))
    end = beyond.end()
    assert end is not None
    assert end > 400
    assert beyond.share(grown(round(end), 100.0)).all == pytest.approx(1.0, rel=0.01)


def test_one_number_of_engines_has_no_line() -> None:
    assert run(grown(16, 1.0)).end() is None


def test_a_run_is_read_as_it_was_written() -> None:
    there = run(grown(16, 1.0), grown(64, 2.0))

    assert read_run(write_run("scale", there), ScaleRun) == there


def test_the_report_says_where_it_ends() -> None:
    text = SCALE.markdown(run(grown(100, 100.0), grown(1_000, 100.0)))

    assert "reaches this at about **" in text
    assert "| 1,000 | 100 | 4.00 | 1.00 | 1,100 | 250 |" in text


CARRIED = Measurement(
    router="inferway serve --no-scoring", version="1", case="8k-token chat",
    cpu_us=[100.0, 120.0, 110.0], requests_per_second=[1.0], p50_us=[1], p99_us=[1],
    resident_mib=1.0, note="",
)  # fmt: skip
PARTS = [Part("render", 20.0, ""), Part("tokenize", 30.0, ""), Part("match", 99.0, "")]


def test_carrying_a_request_is_what_route_has_measured_and_its_tokens() -> None:
    route = RouteRun(
        machine=MACHINE, command="", seconds=1, connections=1, bodies={},
        measurements=[CARRIED], parts=PARTS,
    )  # fmt: skip

    us, made_of = carried(route, MACHINE)

    assert (us, made_of.startswith("inferway serve --no-scoring, 8k")) == (160.0, True)
    with pytest.raises(BenchError, match="the cure: inferway bench route --save"):
        carried(msgspec.structs.replace(route, measurements=[]), MACHINE)


def test_what_a_faster_machine_took_to_carry_a_request_is_what_it_would_take_here() -> None:
    fast = msgspec.structs.replace(MACHINE, yardstick_us=[2.0, 3.0, 9.0])
    slow = msgspec.structs.replace(MACHINE, yardstick_us=[6.0])
    route = RouteRun(
        machine=fast, command="", seconds=1, connections=1, bodies={},
        measurements=[CARRIED], parts=PARTS,
    )  # fmt: skip

    us, made_of = carried(route, slow)

    assert (us, made_of[:11]) == (320.0, "2.00 times,")


def test_what_is_dropped_was_stored() -> None:
    stored, removed = Events(1, 16).stored(4)
    first = msgspec.msgpack.decode(stored[0])[1][0]
    last = msgspec.msgpack.decode(removed[-1])[1][0]

    assert first["block_hashes"] == last["block_hashes"]
    assert len(first["token_ids"]) == 8 * 16


def test_the_parts_are_measured_with_as_many_engines() -> None:
    found = measure(TINY, 3)

    assert (found.engines, found.blocks, len(found.decision_us)) == (3, 128, 2)
    assert found.stored_us > 0
    assert found.removed_us > 0
    assert found.resident_mib > 0
