"""What measuring latencies costs: `.venv/bin/python scripts/latency_cost.py`.

Calls take turns with empty ones, a thousand at a time, what they leave for the buckets included.
The least time and the median are printed, less the empty call's: other programs change the medians
more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from statistics import median

from inferway.openai_api.usage import Usage
from inferway.routing.record import Record
from inferway.telemetry.request_counts import RequestCounts

REPEATS, CALLS = 500, 1000  # so many a second, say
EVENT = (
    b'data: {"id":"chatcmpl-1b2c3d4e5f607182","object":"chat.completion.chunk",'
    b'"created":1780000000,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[%b]%b}\n\n'
)
ROLE = EVENT % (b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}', b"")
TOKEN = EVENT % (b'{"index":0,"delta":{"content":" token"},"finish_reason":null}', b"")
LAST = EVENT % (b"", b',"usage":{"prompt_tokens":1200,"total_tokens":1400}')
DONE = b"data: [DONE]\n\n"
USAGE = Usage(prompt=1200, completion=200)
COUNTS = RequestCounts(time.monotonic)
PASSED = COUNTS.follow(Record(0.0, known_model="m"))


# What a record has for nobody but us, and what is left of it.
OURS = ("is_timed", "first_at", "last_at", "events", "two_events")
Bare = make_dataclass(
    "Bare",
    [
        (each.name, object, field(default=each.default))
        for each in fields(Record)
        if each.name not in OURS
    ],
    slots=True,
)


def record() -> Record:
    return Record(0.0, known_model="m", outcome="ok", usage=USAGE)


def bare() -> object:
    return Bare(0.0, known_model="m", outcome="ok", usage=USAGE)


def whole() -> None:
    """An answer in one piece."""
    made = record()
    COUNTS.follow(made)
    COUNTS.ended(made, 200)


def stream() -> None:
    """One in four pieces, of which one has a token."""
    made = record()
    passed = COUNTS.follow(made)
    for events in (ROLE, TOKEN, LAST, DONE):
        passed(made, events)
    COUNTS.ended(made, 200)


def first() -> None:
    """The first piece with a token, alone."""
    PASSED(record(), TOKEN)


def nanoseconds(call: Callable[[], object]) -> float:
    """A call's, and of what it leaves to be put in buckets."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    COUNTS.flush()
    return (time.perf_counter() - started) / CALLS * 1e9


def main() -> None:
    fresh, begun = record(), record()
    PASSED(begun, TOKEN)
    calls: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "a request without a stream": (whole, bare),
        "a request with a stream": (stream, bare),
        "  its first piece, the role": (lambda: PASSED(fresh, ROLE), lambda: None),
        "  its first token": (first, record),
        "  the usage": (lambda: PASSED(begun, LAST), lambda: None),
        "  [DONE]": (lambda: PASSED(begun, DONE), lambda: None),
        "each further piece of it": (lambda: PASSED(begun, TOKEN), lambda: None),
        "  of that, reading the clock": (lambda: COUNTS.clock(), lambda: None),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, (call, beside) in calls.items():
            found[name].append((nanoseconds(call), nanoseconds(beside)))
    for name, pairs in found.items():
        took, empty = zip(*pairs, strict=True)
        least, middle = min(took) - min(empty), median(took) - median(empty)
        print(f"{name:30} {least:6.0f} ns at least, {middle:6.0f} ns median")


if __name__ == "__main__":
    main()
