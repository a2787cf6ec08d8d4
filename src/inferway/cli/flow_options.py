"""The flags that say how much engines get at a time, how often a request is tried, when an engine
that fails gets none, and for how long it is waited."""

from __future__ import annotations

from inferway.cli.key_options import number_option

FLOW = (
    number_option(
        "--in-flight",
        "flow.in_flight",
        "So many requests are with the engines at a time; more wait their turn.",
        "N",
    ),
    number_option(
        "--engine-in-flight",
        "flow.engine_in_flight",
        "The same for each engine.  [default: no limit]",
        "N",
    ),
    number_option("--queue", "flow.queue", "So many requests wait; beyond that it is 429.", "N"),
    number_option(
        "--attempts",
        "retries.attempts",
        "Engines that a request is tried on before an answer has begun.",
        "N",
    ),
    number_option(
        "--ejection-failures",
        "ejection.failures",
        "An engine that fails so many requests in a row gets none for a while.",
        "N",
    ),
    number_option(
        "--ejection-share",
        "ejection.share",
        "The same for one that fails this share of its requests lately,",
        "SHARE",
    ),
    number_option("--ejection-least", "ejection.least", "if there were at least so many.", "N"),
    number_option("--ejection-window", "ejection.window", "What is lately.", "SECONDS"),
    number_option(
        "--ejection-seconds",
        "ejection.seconds",
        "How long it gets none at first; then twice as long each time.",
        "SECONDS",
    ),
    number_option(
        "--ejection-max-seconds", "ejection.max_seconds", "How long at the most.", "SECONDS"
    ),
    number_option(
        "--hold-head",
        "timeouts.hold_head",
        "How long a stream's head waits for its first event, so that an engine that is lost before "
        "it is replaced unseen.",
        "SECONDS",
    ),
    number_option(
        "--drain-seconds", "timeouts.drain", "How long running answers have at shutdown.", "SECONDS"
    ),
)
