"""`inferway bench scale`: parts measured, and what they come to."""

from __future__ import annotations

import msgspec
import pytest
import uvloop
from bench.tests.runs import MACHINE, a_run

from inferway_bench.dataplane.benchmark import LONG, PLAIN
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row, Run
from inferway_bench.scale import (
    SCALE,
    Once,
    ScalePlan,
    carried,
    end,
    findings,
    process_rows,
    share_rows,
)
from inferway_bench.scale_worker import Filling, Grown, measure, reading_us

TINY = Filling(block_size=16, blocks_held=128, prompt_tokens=320, decisions=2, repeats=2, seed=1)
PLAN = ScalePlan(requests=2.0, new_blocks=16)  # two batches for each request
ONCE = Once(request_us=300.0, scrape_us=1_000.0, read_us=20.0)


def grown(decision: float) -> Grown:
    return Grown(
        event_us=5.0, decision_us=[decision] * 3, resident_mib=1_100.0, bytes_per_block=250.0,
        copied_bytes_per_block=90.0, noted_us=1.0, told_us=0.5,
        followed_us=1.5,
    )  # fmt: skip


def shares(*engines: int) -> list[Row]:
    return share_rows(PLAN, ONCE, {number: grown(100.0) for number in engines})


def test_shares_are_what_each_part_takes_of_a_second() -> None:
    [row] = shares(50)

    assert row.values["requests"] == pytest.approx(100 * 300e-6)
    assert row.values["decisions"] == pytest.approx(100 * 100e-6)
    assert row.values["reading"] == pytest.approx(100 * 2 * 20e-6)
    assert row.values["events"] == pytest.approx(100 * 16 * 5e-6)
    assert row.values["scrapes"] == pytest.approx(50 / 0.2 * 1_000e-6)
    assert row.values["all"] == pytest.approx(0.302)


def test_many_engines_are_scraped_500_times_a_second_and_no_more() -> None:
    few, many = shares(200, 900)

    assert few.values["scrapes"] == many.values["scrapes"] == 0.5


def test_the_end_is_where_one_core_is_used_up() -> None:
    inside = shares(100, 1_000)
    low, high = (row.median("all") for row in inside)
    beyond = end(shares(200, 400))

    assert low < 1 < high
    assert end(inside) == pytest.approx(100 + 900 * (1 - low) / (high - low))
    assert beyond is not None
    assert beyond > 400
    assert shares(round(beyond))[0].median("all") == pytest.approx(1.0, rel=0.01)


def test_one_number_of_engines_has_no_line() -> None:
    assert end(shares(16)) is None


def test_the_report_says_where_it_ends() -> None:
    parts = {100: grown(100.0), 1_000: grown(100.0)}
    found = findings(PLAN, parts, ONCE, "a stored run", 20_000)
    text = SCALE.markdown(a_run("scale", found))

    assert "reaches this at about **" in text
    assert "| 1,000 | 100 | 5.00 | 1,100 | 250 | 90 | 1.00 | 0.50 | 1.50 |" in text
    assert "- a hub and 3 workers use at most one core each; the group reaches this at" in text


def test_the_hub_has_events_and_scrapes_and_workers_the_requests_and_what_they_are_told() -> None:
    [alone] = shares(50)
    [row] = process_rows(PLAN, [alone], {50: grown(100.0)})

    told, followed = 100 * 16 * (1.0 + 3 * 0.5) * 1e-6, 100 * 16 * 1.5e-6
    assert row.values["told"] == pytest.approx(told)
    assert row.values["followed"] == pytest.approx(followed)
    hub = alone.median("reading") + alone.median("events") + alone.median("scrapes") + told
    assert row.values["hub"] == pytest.approx(hub)
    answers = (alone.median("requests") + alone.median("decisions")) / 3
    assert row.values["worker"] == pytest.approx(answers + followed)
    assert row.values["all"] == pytest.approx(max(hub, answers + followed))


def dataplane(**head: object) -> Run:
    row = Row("cpu", {"load": LONG, "router": PLAIN}, {"cpu_us": [100.0, 120.0, 110.0]})
    return a_run("dataplane", [row], **head)


def test_carrying_a_request_is_what_dataplane_has_measured_and_its_tokens() -> None:
    us, made_of = carried(dataplane(), MACHINE, 50.0)

    assert (us, made_of.startswith("inferway serve --no-scoring, 8k")) == (160.0, True)
    with pytest.raises(BenchError, match="fix: inferway bench dataplane --save"):
        carried(a_run("dataplane", []), MACHINE, 50.0)


def test_what_a_faster_machine_took_to_carry_a_request_is_what_it_would_take_here() -> None:
    fast = msgspec.structs.replace(MACHINE, yardstick_us=[2.0, 3.0, 9.0])
    slow = msgspec.structs.replace(MACHINE, yardstick_us=[6.0])

    us, made_of = carried(dataplane(machine=fast), slow, 50.0)

    assert (us, made_of[:11]) == (270.0, "2.00 times,")


def test_the_parts_are_measured_with_a_number_of_engines() -> None:
    found = measure(TINY, 3)

    assert len(found.decision_us) == 2
    assert found.event_us > 0
    assert found.resident_mib > 0
    assert found.told_us > 0
    assert found.followed_us > 0


def test_batches_are_read_from_real_sockets() -> None:
    found = uvloop.run(reading_us(b"payload", connections=3, rounds=2))

    assert len(found) == 2
    assert min(found) > 0
