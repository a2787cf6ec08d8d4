"""Metric families of the gateway's readiness, the states of its engines, limits, the queue, further
tries and keys."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.fleet.fleet import Fleet
from inferway.fleet.outage import count_states
from inferway.http.auth import Auth
from inferway.metrics import Family, counter, gauge
from inferway.routing.limits.circuit_breaker import BreakerState
from inferway.routing.limits.outlier_detection import Affected, OutlierDetection


def flow_families(auth: Auth, fleet: Fleet) -> Iterator[Family]:
    yield gauge(
        "ready",
        "1 if a request would be answered, as /ready says; else 0.",
        value=fleet.why_not_ready() is None,
    )
    yield from _queue(auth)
    yield from _sessions(auth)
    yield from _engines(auth, fleet)
    retries = auth.failover.retries
    yield counter("retries", "Further tries of requests on another engine.", value=retries.made)
    yield counter(
        "retries_refused",
        "Further tries of requests that were not made because there were too many.",
        value=retries.refused,
    )
    yield counter(
        "reloads",
        "Reloads of the settings by SIGHUP, by outcome: done, or refused with the old settings"
        " kept.",
        ["outcome"],
        {(outcome,): n for outcome, n in auth.reloads.items()},
    )
    yield counter(
        "key_requests",
        "Requests by the name of their API key.",
        ["key"],
        {(name,): n for name, n in auth.requests.items()},
    )
    yield counter(
        "key_refused",
        "Requests that were refused because they had no known API key.",
        value=auth.refused,
    )


def _queue(auth: Auth) -> Iterator[Family]:
    control = auth.control
    limiter = control.limiter
    stats = limiter.stats
    yield gauge(
        "flow_in_flight",
        "Requests that have had their turn and whose answers have not ended.",
        value=limiter.in_flight,
    )
    yield gauge(
        "flow_waiting",
        "Requests that wait for their turn in the gateway's queue, by priority.",
        ["priority"],
        {(str(priority),): size for priority, size in limiter.queue.sizes().items()},
    )
    gate = limiter.gate
    yield gauge(
        "flow_saturation",
        "How full the model's endpoints are by the flow control of the scheduling configuration; at"
        " 1, requests wait.",
        ["model"],
        {} if gate is None else {(model,): each for model, each in gate.saturations().items()},
    )
    yield counter(
        "flow_refused",
        "Requests that flow control refused with 429, by reason: full, displaced or too-long.",
        ["why"],
        {
            ("full",): stats.full,
            ("displaced",): stats.displaced,
            ("too-long",): stats.too_long,
        },
    )
    yield counter(
        "flow_left",
        "Requests whose client left while they waited for their turn.",
        value=stats.left,
    )


def _sessions(auth: Auth) -> Iterator[Family]:
    queue = auth.control.sessions
    gate = None if queue is None else queue.gate
    models = {} if gate is None else gate.admission.models
    yield gauge(
        "sessions_alive",
        "Sessions that session-admission has let in and that are not over, by model.",
        ["model"],
        {(model,): len(live.alive) for model, live in models.items()},
    )
    yield gauge(
        "sessions_tokens",
        "Tokens that these sessions have said and heard, which caches hold or would have to.",
        ["model"],
        {(model,): live.tokens for model, live in models.items()},
    )
    yield gauge(
        "sessions_waiting",
        "Turns of new sessions that wait until caches have room for them.",
        value=0 if gate is None else gate.queue.size,
    )
    yield counter(
        "sessions_waited",
        "Turns of new sessions that had to wait, by what became of them: room (there was room at"
        " last), overdue (let in without room after maxWaitSeconds), too-long (refused with 429:"
        " their clients would not wait longer) or full (refused with 429: too many waited).",
        ["outcome"],
        {}
        if gate is None
        else {
            ("room",): gate.num_waited - gate.num_overdue,
            ("overdue",): gate.num_overdue,
            ("too-long",): gate.num_too_long,
            ("full",): gate.num_full,
        },
    )


def _engines(auth: Auth, fleet: Fleet) -> Iterator[Family]:
    failover = auth.failover
    standing, now = failover.standing, failover.clock()
    names = [engine.name for engine in fleet.engines]
    label = ["engine"]
    yield gauge(
        "engines",
        "Engines in each state. An engine is in one of them, and every state is there.",
        ["state"],
        {
            (str(state),): number
            for state, number in count_states(fleet.engines, standing, now).items()
        },
    )
    yield gauge(
        "engine_drained",
        "1 if the engine gets no new requests because an operator has drained it; else 0.",
        label,
        {(name,): name in standing.drained for name in names},
    )
    yield gauge(
        "engine_suspended",
        "1 if the engine is well and gets no new requests because it is asleep, paused or scaling;"
        " else 0.",
        label,
        {(name,): name in standing.suspended for name in names},
    )
    yield gauge(
        "engine_ejected",
        "1 if the engine gets no requests, or one at a time, because it has failed"
        " too often; else 0.",
        label,
        {(name,): standing.state(name, now) is not BreakerState.CLOSED for name in names},
    )
    yield counter(
        "engine_failures",
        "Requests that the engine did not answer completely, or answered with 502, 503 or 504.",
        label,
        {(name,): standing.failures.get(name, 0) for name in names},
    )
    yield counter(
        "engine_ejections",
        "Times that the engine was ejected because it failed too often.",
        label,
        {(name,): standing.ejections.get(name, 0) for name in names},
    )
    yield from _outages(failover.standing, names)


def _outages(standing: OutlierDetection, names: list[str]) -> Iterator[Family]:
    affected = {name: standing.affected.get(name) or Affected() for name in names}
    yield gauge(
        "outage_requests_moved",
        "Requests and streams that other engines took over since the engine's last outage began.",
        ["engine"],
        {(name,): each.moved for name, each in affected.items()},
    )
    yield gauge(
        "outage_requests_lost",
        "Requests and streams whose clients got an error since the engine's last outage began.",
        ["engine"],
        {(name,): each.failed for name, each in affected.items()},
    )
    yield counter(
        "requests_moved",
        "Requests and streams that other engines took over because this engine was lost.",
        ["engine"],
        {(name,): standing.moved.get(name, 0) for name in names},
    )
    yield counter(
        "requests_lost",
        "Requests and streams whose clients got an error because this engine was lost.",
        ["engine"],
        {(name,): standing.lost.get(name, 0) for name in names},
    )
