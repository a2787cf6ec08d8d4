"""Requests over time."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.page.timeline import BUCKETS, SECONDS, Timeline
from inferway_console.records.record import RequestRecord


def record(at: float = 1000.0, **fields: Any) -> RequestRecord:
    known = {"prompt_tokens": 100, "prompt_blocks": 6, "block_size": 16, "delivered_tokens": 32}
    fields = {
        **known,
        "reachable_blocks": 4,
        "chosen_blocks": 3,
        "status": 200,
        "streamed": True,
        **fields,
    }
    return RequestRecord(id="r", at=at, outcome="ok", **fields)


def test_a_request_counts_when_it_ended() -> None:
    timeline = Timeline()
    timeline.add(record(1000.5, total_ms=4000.0))

    ((start, requests, failed, *tokens, _, _, _, _),) = timeline.changes()

    assert (start, requests, failed) == (1004, 1, 0)
    assert tokens == [100, 64, 48, 32]


def test_only_what_has_changed_is_told_again() -> None:
    timeline = Timeline()
    timeline.add(record(1000))
    timeline.add(record(1010))
    timeline.changes()
    timeline.add(record(1011))

    assert [bucket[:2] for bucket in timeline.changes()] == [[1010, 2]]
    assert timeline.changes() == []
    assert [bucket[0] for bucket in timeline.whole()] == [1000, 1010]


def test_what_an_engine_does_not_tell_is_no_share_of_tokens() -> None:
    timeline = Timeline()
    timeline.add(record(delivered_tokens=-1))
    timeline.add(record(prompt_blocks=0))

    assert timeline.whole()[0][1:7] == [2, 0, 0, 0, 0, 0]


def test_failures_are_counted() -> None:
    timeline = Timeline()
    timeline.add(record(status=503))
    timeline.add(record(status=429))

    assert timeline.whole()[0][2] == 1


def test_a_stream_that_was_cut_off_is_a_failure() -> None:
    timeline = Timeline()
    timeline.add(msgspec.structs.replace(record(), outcome="upstream_error"))

    assert timeline.whole()[0][2] == 1


def test_what_engines_without_events_deliver_is_told_apart() -> None:
    timeline = Timeline()
    timeline.add(record(reachable_blocks=0, chosen_blocks=0), is_unseen=True)
    timeline.add(record())

    ((*_, delivered, _, _, _, unseen),) = timeline.whole()
    assert (delivered, unseen) == (64, 32)


def test_the_first_tokens_of_the_last_minute_have_quantiles() -> None:
    timeline = Timeline()
    timeline.add(record(900.0, ttft_ms=9000.0))
    for ms in range(1, 101):
        timeline.add(record(1000.0 + ms / 4, ttft_ms=float(ms)))

    assert timeline.minute(1030.0) == {"p50": 51.0, "p95": 96.0}
    assert timeline.minute(2000.0) == {"p50": None, "p95": None}


def test_times_are_quantiles_of_those_that_are_known() -> None:
    timeline = Timeline()
    for ms in (30.0, 10.0, 20.0, -1.0):
        timeline.add(record(ttft_ms=ms, expected_ttft_ms=-1.0))

    assert timeline.whole()[0][7:10] == [None, 20.0, 30.0]


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    timeline = Timeline()
    timeline.add(record(ttft_ms=900.0, streamed=False))

    assert timeline.whole()[0][7:10] == [None, None, None]


@given(st.lists(st.integers(0, 5_000), max_size=400), st.integers(0, 3))
def test_it_is_bounded_and_in_order_whatever_comes(times: list[int], size: int) -> None:
    timeline = Timeline()
    for at in times:
        timeline.add(record(float(at), block_size=16 * size, reachable_blocks=900))

    told = timeline.whole()
    starts = [bucket[0] for bucket in told]
    assert (
        starts == sorted({at // SECONDS * SECONDS for at in times})[-BUCKETS:]
        or len(told) == BUCKETS
    )
    assert all(bucket[4] <= bucket[3] for bucket in told if bucket[3] and bucket[4])
