"""The flags that say how much engines get at a time, how often a request is tried, and for how long
it is waited."""

from __future__ import annotations

from collections.abc import Mapping

import click

FLOW = (
    click.option(
        "--in-flight",
        type=int,
        metavar="N",
        help="So many requests are with the engines at a time; more wait their turn.  "
        "[default: 10000]",
    ),
    click.option(
        "--engine-in-flight",
        type=int,
        metavar="N",
        help="The same for each engine.  [default: no limit]",
    ),
    click.option(
        "--queue",
        type=int,
        metavar="N",
        help="So many requests wait; beyond that it is 429.  [default: 1000]",
    ),
    click.option(
        "--attempts",
        type=int,
        metavar="N",
        help="Engines that a request is tried on before an answer has begun.  [default: 3]",
    ),
    click.option(
        "--hold-head",
        type=float,
        metavar="SECONDS",
        help="How long a stream's head waits for its first event, so that an engine that is lost "
        "before it is replaced unseen.  [default: 30]",
    ),
    click.option(
        "--drain-seconds",
        type=float,
        metavar="SECONDS",
        help="How long running answers have at shutdown.  [default: 30]",
    ),
)

# flag -> the settings' key, and the key in it
_KEYS = {
    "in_flight": ("flow", "in_flight"),
    "engine_in_flight": ("flow", "engine_in_flight"),
    "queue": ("flow", "queue"),
    "attempts": ("retries", "attempts"),
    "hold_head": ("timeouts", "hold_head"),
    "drain_seconds": ("timeouts", "drain"),
}


def flow(flags: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """What was said, by the settings' names."""
    given: dict[str, dict[str, object]] = {}
    for flag, (key, inner) in _KEYS.items():
        if flags.get(flag) is not None:
            given.setdefault(key, {})[inner] = flags[flag]
    return given


FLOW_FLAGS = frozenset(_KEYS)
