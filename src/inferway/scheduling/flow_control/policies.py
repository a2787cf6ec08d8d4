"""Plugins that say whose turn it is among the requests of one priority."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.registry import Building, Parameters, PluginType

NotNegative = Annotated[float, Meta(ge=0)]
MOST_TENANTS = 100_000  # remembered; beyond, the one that was served the longest time ago goes


class Arrival(msgspec.Struct, frozen=True):
    """A request that comes into the queue."""

    came: float  # seconds
    deadline: float  # it waits no longer
    ttft_seconds: float | None  # that it asks for


@runtime_checkable
class Ordering(Protocol):
    """Orders the requests of one tenant; equals go in the order in which they came."""

    def rank(self, arrival: Arrival) -> float:
        """Return a number that is smaller for a request that goes sooner."""


@runtime_checkable
class Fairness(Protocol):
    """Chooses among tenants."""

    def flow(self, tenant: str) -> str:
        """Return the name under which the tenant's requests take their turns."""


@runtime_checkable
class ChoosesFlow(Protocol):
    """A Fairness that does not take turns, but chooses."""

    def next_flow(self, waiting: Mapping[str, float], now: float) -> str:
        """Return whose request goes next, of those that wait, each with the time at which its first
        request came."""


class FirstCome(Parameters, frozen=True):
    """The plugin fcfs-ordering-policy: first come, first served."""

    def rank(self, arrival: Arrival) -> float:
        return 0.0


class EarliestDeadline(Parameters, frozen=True):
    """edf-ordering-policy: by when the request's time in the queue is over; those that have no
    limit go last."""

    def rank(self, arrival: Arrival) -> float:
        return arrival.deadline


class SloDeadline(Parameters, frozen=True):
    """slo-deadline-ordering-policy: by when the first token should be there; those that ask for
    none go last."""

    def rank(self, arrival: Arrival) -> float:
        asked = arrival.ttft_seconds
        return inf if asked is None else arrival.came + asked


class RoundRobin(Parameters, frozen=True):
    """The plugin round-robin-fairness-policy: tenants take turns."""

    def flow(self, tenant: str) -> str:
        return tenant


class GlobalStrict(Parameters, frozen=True):
    """global-strict-fairness-policy: all tenants are one."""

    def flow(self, tenant: str) -> str:
        return ""


class ProgramAwareParameters(Parameters, frozen=True):
    strategy: Literal["las"] = "las"
    las_weight_service: NotNegative = 0.8
    las_weight_head_wait: NotNegative = 0.2
    las_half_life_seconds: NotNegative = 60.0
    eviction_ttl_seconds: NotNegative = 3600.0  # 0: never
    eviction_sweep_seconds: Annotated[float, Meta(gt=0)] = 300.0  # not in force


class _Service(msgspec.Struct):
    """The service that a tenant has had."""

    tokens: float
    at: float  # seconds: as of when
    used: float  # seconds: when a request of it has last ended


@dataclass(slots=True)
class LeastAttainedService:
    """The plugin program-aware-fairness: first the tenant that has had the least of late, in tokens
    of prompts and twice those of answers, fading by half in each half-life; to a smaller part, the
    one whose first request has waited for the longest time. Both count by where they lie between
    the least and the most of those that wait (llm-d-router ebab687, fairness/program-aware)."""

    parameters: ProgramAwareParameters
    _served: OrderedDict[str, _Service] = field(default_factory=OrderedDict)

    def flow(self, tenant: str) -> str:
        return tenant

    def next_flow(self, waiting: Mapping[str, float], now: float) -> str:
        p = self.parameters
        services = {tenant: self.service(tenant, now) for tenant in waiting}
        least, most = min(services.values()), max(services.values())
        oldest, newest = min(waiting.values()), max(waiting.values())

        def score(tenant: str) -> float:
            little = 1.0 - _placed(services[tenant], least, most)
            long = _placed(newest - waiting[tenant], 0.0, newest - oldest)
            return p.las_weight_service * little + p.las_weight_head_wait * long

        return max(waiting, key=score)

    def service(self, tenant: str, now: float) -> float:
        """Return the tokens that the tenant has had of late."""
        served = self._served.get(tenant)
        if served is None:
            return 0.0
        half_life = self.parameters.las_half_life_seconds
        if half_life > 0 and now > served.at:
            served.tokens *= 2.0 ** ((served.at - now) / half_life)
            served.at = now
        return served.tokens

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return _ServiceListener(self, request)

    def served(self, tenant: str, tokens: float, now: float) -> None:
        """Note that a request of the tenant has ended, which took so many tokens."""
        had = self.service(tenant, now)
        self._served[tenant] = _Service(had + tokens, now, now)
        self._served.move_to_end(tenant)
        ttl = self.parameters.eviction_ttl_seconds
        while len(self._served) > MOST_TENANTS or (ttl and self._oldest() < now - ttl):
            self._served.popitem(last=False)

    def _oldest(self) -> float:
        return next(iter(self._served.values())).used


def _placed(value: float, least: float, most: float) -> float:
    """Return where the value lies between the two, from 0 to 1; 0.5 if these are equal."""
    return (value - least) / (most - least) if most > least else 0.5


@dataclass(slots=True)
class _ServiceListener(RequestListener):
    """An answer that does not tell its usage counts as its prompt."""

    service: LeastAttainedService
    request: LLMRequest

    def on_end(self, ending: RequestOutcome) -> None:
        usage = ending.usage
        if usage is None:
            tokens = self.request.num_prompt_tokens
        else:
            tokens = usage.prompt + 2 * usage.completion
        self.service.served(self.request.tenant, tokens, ending.now)


def _program_aware(parameters: ProgramAwareParameters, building: Building) -> LeastAttainedService:
    return LeastAttainedService(parameters)


DEFAULT_ORDERING = "fcfs-ordering-policy"
DEFAULT_FAIRNESS = "global-strict-fairness-policy"

TYPES = (
    PluginType(DEFAULT_ORDERING, "orders waiting requests by when they came", parameters=FirstCome),
    PluginType(
        "edf-ordering-policy",
        "orders waiting requests by when their time in the queue is over",
        parameters=EarliestDeadline,
    ),
    PluginType(
        "slo-deadline-ordering-policy",
        "orders waiting requests by when their first token should be there "
        "(x-llm-d-slo-ttft-ms); those without the header go last",
        parameters=SloDeadline,
    ),
    PluginType(
        DEFAULT_FAIRNESS,
        "lets waiting requests go in their order, whatever tenant they are of",
        parameters=GlobalStrict,
    ),
    PluginType(
        "round-robin-fairness-policy",
        "lets tenants that have waiting requests take turns",
        parameters=RoundRobin,
    ),
    PluginType(
        "program-aware-fairness",
        "lets the tenant go first that has had the fewest tokens of late (las)",
        _program_aware,
        ProgramAwareParameters,
        not_in_force=frozenset({"strategy", "evictionSweepSeconds"}),
    ),
)
