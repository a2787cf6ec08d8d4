"""Pieces of a streamed answer with their times -> what one request took. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from inferway.bench.chat_overhead.workload import Arm, Kind, Planned


class Piece(NamedTuple):
    """Bytes of a body as they arrived."""

    arrived_ns: int
    data: bytes


class Outcome(msgspec.Struct, frozen=True):
    """One request. Times in microseconds; None where there is nothing to tell."""

    pair: int
    kind: Kind
    arm: Arm
    lag_us: int  # how much later than planned it left
    error: str | None = None
    ttft_us: int | None = None  # from sending to the first token's chunk
    itl_us: float | None = None  # mean time between tokens; of one token there is none
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # as the engine says
    matched_blocks: int | None = None  # as the gateway says
    engine: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


def read_answer(
    planned: Planned,
    *,
    lag_us: int,
    sent_ns: int,
    status: int,
    headers: Mapping[str, str],
    pieces: Sequence[Piece],
    error: str | None,
) -> Outcome:
    """What is not a whole stream of at least one token is an error."""
    if error is None and status != 200:
        error = f"answered {status}: {b''.join(p.data for p in pieces)[:300]!r}"
    token_times, usage = ([], None) if error is not None else _tokens(pieces)
    if not token_times or usage is None:
        error = error or "a stream without tokens or usage"
        return Outcome(planned.pair, planned.kind, planned.arm, lag_us, error)
    details = usage.prompt_tokens_details
    between = usage.completion_tokens - 1
    return Outcome(
        pair=planned.pair,
        kind=planned.kind,
        arm=planned.arm,
        lag_us=lag_us,
        ttft_us=round((token_times[0] - sent_ns) / 1e3),
        itl_us=round((token_times[-1] - token_times[0]) / 1e3 / between, 1) if between else None,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        matched_blocks=_number(headers.get("x-inferway-matched-blocks")),
        engine=headers.get("x-inferway-engine"),
    )


def _tokens(pieces: Sequence[Piece]) -> tuple[list[int], _Usage | None]:
    """When each chunk with tokens came, and the usage at the end."""
    times, usage = [], None
    for arrived_ns, event in _events(pieces):
        if event == b"[DONE]":
            continue
        chunk = msgspec.json.decode(event, type=_Chunk)
        usage = chunk.usage or usage
        # A chat's first chunk says who speaks, and nothing else.
        if any(choice.delta is None or "role" not in choice.delta for choice in chunk.choices):
            times.append(arrived_ns)
    return times, usage


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[int, bytes]]:
    """Each event's data, and when its end arrived."""
    rest = b""
    for arrived_ns, data in pieces:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            yield arrived_ns, event.removeprefix(b"data: ")


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
