"""The flags that say how much engines get at a time, how often a request is tried, when an engine
that fails gets none, and for how long it is waited."""

from __future__ import annotations

from typing import Final

from inferway.cli.command import section
from inferway.cli.key_options import number_option

LIMITS: Final = section(
    "Limits and queues",
    number_option(
        "--in-flight",
        "flow.in_flight",
        "Send at most this number of requests to all engines at a time; others wait their turn.",
        "N",
    ),
    number_option(
        "--engine-in-flight",
        "flow.engine_in_flight",
        "Send at most this number of requests to each engine at a time.  [default: no limit]",
        "N",
    ),
    number_option(
        "--queue",
        "flow.queue",
        "Let at most this number of requests wait; further ones are answered with status 429.",
        "N",
    ),
    number_option(
        "--drain-seconds",
        "timeouts.drain",
        "Give running answers this time at shutdown before they are cut off.",
        "SECONDS",
    ),
    example="inferway serve http://10.0.0.5:8000 --engine-in-flight 64 --queue 500",
)

FAILURES: Final = section(
    "Engines that fail",
    number_option(
        "--attempts",
        "retries.attempts",
        "Try a request on at most this number of engines while none has begun to answer.",
        "N",
    ),
    number_option(
        "--hold-head",
        "timeouts.hold_head",
        "Hold back the head of a streamed answer for at most this time, until its first event "
        "comes: if the engine is lost before, another one takes its place and the client does not "
        "notice. It counts only with --stream-keep-alive 0.",
        "SECONDS",
    ),
    number_option(
        "--stream-keep-alive",
        "timeouts.stream_keep_alive",
        "Send the client of a stream a comment after this time without a byte, wherever its "
        "request waits; another engine may still answer. 0: never.",
        "SECONDS",
    ),
    number_option(
        "--ejection-failures",
        "ejection.failures",
        "Send an engine nothing for a while after this number of failures in a row.",
        "N",
    ),
    number_option(
        "--ejection-share",
        "ejection.share",
        "Send an engine nothing for a while after it has failed this share of its recent requests.",
        "SHARE",
    ),
    number_option(
        "--ejection-least",
        "ejection.least",
        "Heed --ejection-share only if an engine had at least this number of recent requests.",
        "N",
    ),
    number_option(
        "--ejection-window",
        "ejection.window",
        "Count requests of this last time as recent.",
        "SECONDS",
    ),
    number_option(
        "--ejection-seconds",
        "ejection.seconds",
        "Send a failing engine nothing for this time at first, and for twice as long each further "
        "time.",
        "SECONDS",
    ),
    number_option(
        "--ejection-max-seconds",
        "ejection.max_seconds",
        "Send a failing engine nothing for this time at the most.",
        "SECONDS",
    ),
    example="inferway serve --config gateway.yaml --attempts 2 --ejection-failures 3",
)
