"""The records of requests that a gateway in front of simulated engines keeps."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, until
from tests.integration.recorders import records_of
from tests.integration.test_gateway import all_known

from inferway.config import RecordSettings
from inferway_console.records.files import FleetLine
from inferway_console.records.reader import Recorded, RecordReader
from inferway_console.records.record import MissKind, RequestRecord


async def recorded(fleet: Fleet, request_id: str) -> RequestRecord:
    """The record of this id, once it is there."""
    ring = records_of(fleet.gateway).ring

    async def is_there() -> bool:
        return ring.find(request_id) is not None

    await until(is_there)
    record = ring.find(request_id)
    assert record is not None
    return record


async def test_a_request_has_a_record(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await fleet.chat(LONG)
    await all_known(fleet)

    answer = await fleet.chat(LONG)
    record = await recorded(fleet, answer.headers["X-Request-ID"])

    assert record.chosen == record.reachable_at == answer.engine
    assert record.chosen_blocks == record.reachable_blocks == answer.matched
    assert record.delivered_tokens == answer.cached_tokens
    assert record.prompt_tokens == record.usage_prompt_tokens
    assert (record.status, record.outcome, record.attempts) == (200, "ok", 1)
    assert {each.endpoint for each in record.candidates} == {
        engine.url.removeprefix("http://") for engine in fleet.engines
    }
    assert record.candidates[0].blocks == answer.matched
    assert record.missed == ()


async def test_what_is_recorded_in_files_can_be_read(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    settings = RecordSettings(directory=str(tmp_path))
    fleet = await start_fleet(2, records=settings)
    for question in ("one?", "two?", "one?"):
        await fleet.chat(LONG + question)
        await all_known(fleet)
    await records_of(fleet.gateway).close()

    reader = RecordReader(tmp_path)
    found = list(reader)
    requests = [each for each in found if isinstance(each, Recorded)]
    lines = [each for each in found if isinstance(each, FleetLine)]

    assert not reader.damaged
    assert [each.record for each in requests] == records_of(fleet.gateway).ring.since(0)[1]
    one, two, again = [each.blocks for each in requests]
    assert one == again != two
    assert one is not None
    assert two is not None
    assert one[0] == two[0]
    assert {line.engine for line in lines if line.event == "joined"} == {
        engine.url.removeprefix("http://") for engine in fleet.engines
    }
    [path] = tmp_path.glob("*.gz")
    text = gzip.decompress(path.read_bytes())
    assert b"one?" not in text
    assert LONG.encode() not in text


async def test_a_drained_engine_that_held_more_is_named(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    first = await fleet.chat(LONG)
    await all_known(fleet)
    await fleet.post(f"/admin/engines/{first.engine}/drain", b"")

    answer = await fleet.chat(LONG)
    record = await recorded(fleet, answer.headers["X-Request-ID"])

    [miss] = record.missed
    assert (miss.kind, miss.detail) == (MissKind.FILTERED, f"{first.engine}: drained")
    assert record.reachable_at == first.engine
    assert record.reachable_blocks == miss.blocks > record.chosen_blocks
    missed = await fleet.metric("inferway_missed_blocks_total", kind="filtered")
    assert missed == miss.blocks


async def test_an_engine_that_says_nothing_is_named(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG)
    await all_known(fleet)

    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 4,
        "stream": True,
    }
    async with fleet.http.post(f"{fleet.url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        record = await recorded(fleet, answer.headers["X-Request-ID"])

    assert [miss.kind for miss in record.missed] == [MissKind.SILENT]
    assert record.streamed
    assert record.delivered_tokens == -1
    assert 0 < record.itl_p50_ms <= record.itl_max_ms < record.total_ms


async def test_a_refused_request_has_a_record(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.chat("hello", model="nobody-serves-this")
    [record] = records_of(fleet.gateway).ring.newest()

    assert answer.status == record.status == 404
    assert (record.outcome, record.chosen, record.model) == ("refused", "", "")


async def test_nothing_is_kept_if_it_is_switched_off(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, records=RecordSettings(requests=0))

    await fleet.chat(LONG)

    assert len(records_of(fleet.gateway).ring) == 0
    watching = [getattr(each, "__self__", None) for each in fleet.gateway.director.on_request]
    assert records_of(fleet.gateway).recorder not in watching


async def test_a_choice_by_expected_ttft_keeps_its_terms(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2, scheduling=None)

    answer = await fleet.chat(LONG)
    record = await recorded(fleet, answer.headers["X-Request-ID"])

    chosen = record.candidates[0]
    assert record.picked_by == "expected-ttft"
    assert chosen.terms["own"] > 0
    assert record.expected_ttft_ms == pytest.approx(
        float(answer.headers["x-inferway-expected-ttft-ms"]), rel=0.02, abs=0.1
    )
