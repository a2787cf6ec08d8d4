"""No parameter is taken and then not looked at: each is read by who takes it, or said to be not in
force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import getattr_static
from types import FunctionType
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.model import SchedulingResult, Target
from inferway.routing.limits.queue import Waiter
from inferway.routing.limits.session_gate import SessionGate
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.flow_control.policies import ChoosesFlow
from inferway.scheduling.flow_control.usage_limits import UsageLimits
from inferway.scheduling.goodput_admission import GoodputAdmission
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import (
    DataProducer,
    Decider,
    Filter,
    RequestListenerFactory,
    RequestOutcome,
    Scorer,
)
from inferway.scheduling.profile import Profile
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.session_admission import SessionAdmission
from inferway.scheduling.session_id import session_header
from inferway_llmd.scheduling.handlers.deciders import Always
from inferway_llmd.scheduling.topology import EXTRACTOR, Topology

_PROFILE = Profile(MaxScore(), ())
BUILDING = Building(
    plugins={
        "d": Always(),
        "expected-ttft": ExpectedTtft(),
        "prefix-based-pd-decider": Always(),
        "s": session_header("x-s"),
    },
    profiles={"decode": _PROFILE, "prefill": _PROFILE, "encode": _PROFILE},
)
ONE_PROFILE = Building(profiles={"default": _PROFILE})
TAKE_ONE = ("single-profile-handler", "data-parallel-profile-handler")
_SESSIONS: list[dict[str, object]] = [
    {"encodedEndpointHeaderConfig": {"header": "x-t"}},
    {"strategy": "session_id", "sessionIdConfig": {"sources": [{"header": "x-s"}]}},
    {
        "strategy": "session_id",
        "sessionIdConfig": {"sources": [{"attribute": "SessionID", "producer": "s"}]},
    },
]
_SELECTOR = {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}
_IN = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}
# Values with which what is optional is looked into; each type is built with each of its own.
GIVEN: Mapping[str, Sequence[Mapping[str, object]]] = {
    "label-selector-filter": [_SELECTOR, _IN],
    "by-label-selector": [_SELECTOR, _IN],
    "by-label": [{"label": "a", "validValues": ["1"]}],
    "session-affinity-filter": _SESSIONS,
    "session-affinity-scorer": _SESSIONS,
    "header-label-affinity-scorer": [{"headerName": "x-a", "labelKey": "a"}],
    "disagg-profile-handler": [{"deciders": {"prefill": "d", "encode": "d"}}],
    "prefix-based-pd-decider": [{"nonCachedTokens": 1}],
    "prefix-cache-affinity-filter": [{"maxTokensInFlightPenalty": 1}],
    "utilization-filter": [
        {"conditions": [{"metric": "active-requests", "maxValue": 1}], "fallbackOnEmpty": True}
    ],
    "endpoint-attribute-filter": [
        {
            "attribute": "num_requests_waiting",
            "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 1}},
        }
    ],
    "endpoint-attribute-scorer": [
        {
            "attributeKey": "num_requests_waiting",
            "algorithm": {
                "type": "linear_lower_is_better",
                "normalization": {"fixedRange": {"min": 0, "max": 9}},
            },
        }
    ],
    "session-id-producer": [{"headerName": "x-session"}],
    "concurrency-detector": [{"concurrencyMode": "hybrid"}],
    "priority-holdback-policy": [{"minCeiling": 0.5}],
}
TABLE = candidates(labels=[{"a": "1"}, {}], waiting=[0, 2], in_flight=[1, 2])
ASK = request(tokens=100, headers=((b"x-a", b"1"),), ttft_ms=500)


class Watched:
    """Parameters, and those they hold, that note which of them are read, by their paths. Methods
    and properties are those of the parameters' class."""

    def __new__(cls, given: msgspec.Struct, *_: object) -> Watched:
        # On the class: since Python 3.12, isinstance() of a protocol looks for methods there.
        kind = type(given)
        own = {name: getattr_static(kind, name) for name in dir(kind) if not hasattr(cls, name)}
        methods = {n: each for n, each in own.items() if isinstance(each, FunctionType | property)}
        return super().__new__(type(cls.__name__, (cls,), methods))

    def __init__(self, given: msgspec.Struct, read: set[str], path: str = "") -> None:
        self._given, self._read, self._path = given, read, path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}{name}"
        self._read.add(path)
        return self._watched(getattr(self._given, name), path)

    def _watched(self, value: Any, path: str) -> Any:
        if isinstance(value, msgspec.Struct):
            return Watched(value, self._read, f"{path}.")
        if isinstance(value, tuple):
            return tuple(self._watched(each, path) for each in value)
        return value

    def __eq__(self, other: object) -> bool:
        return self._given == other

    __hash__ = None  # type: ignore[assignment]


def paths(given: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Of all parameters: as they are read, and as they are written in a configuration."""
    if isinstance(given, tuple):
        for each in given:
            yield from paths(each, path)
    if isinstance(given, msgspec.Struct):
        for field in msgspec.structs.fields(given):
            value, name = getattr(given, field.name), f"{path}{field.name}"
            if not isinstance(value, msgspec.Struct):
                yield name, field.encode_name
            yield from ((n, f"{field.encode_name}.{e}") for n, e in paths(value, f"{name}."))


def wait_for(plugin: SessionAdmission | GoodputAdmission) -> None:
    """Have requests wait."""
    if isinstance(plugin, GoodputAdmission):
        plugin.is_open(TABLE)
        plugin.spare_seconds(request(tokens=100), TABLE)
        return
    plugin.named(ASK)
    gate = SessionGate(plugin, lambda _: {"e0": 1.0})
    gate.enters("m", b"first", 0.0)
    gate.enters("m", b"second", 0.0)  # there is no room beside the first one
    gate.wait(Waiter("m", "", 0, deadline=9.0, came=0.0), b"second")
    gate.turns(0.0)


def use(kind: PluginType, parameters: Any) -> None:
    """As a request does."""
    kind.needs(parameters)
    plugin = kind.build(parameters, ONE_PROFILE if kind.name in TAKE_ONE else BUILDING)
    if isinstance(plugin, UsageLimits):
        plugin.ceilings(0.5, [2, 1])
    if isinstance(plugin, RequestListenerFactory):
        follower = plugin.follow(
            ASK, TABLE, SchedulingResult((Target(TABLE.endpoints[0], 1, 0, 0),))
        )
        if follower is not None:
            follower.on_attempt(Target(TABLE.endpoints[0], 1.0, 0, 0), 0.0)
            follower.on_end(RequestOutcome("ok", 1.0))
    if isinstance(plugin, ChoosesFlow):
        plugin.next_flow({ASK.tenant: 0.0, "b": 1.0}, 2.0)
    if isinstance(plugin, SessionAdmission | GoodputAdmission):
        wait_for(plugin)
    if kind.name == EXTRACTOR:
        cast(Topology, plugin).place(TABLE.endpoints[0])
    for table in (candidates(2), TABLE):
        if isinstance(plugin, DataProducer):
            plugin.produce(ASK, table)
        if isinstance(plugin, Filter):
            plugin.keep(ASK, table)
        if isinstance(plugin, Scorer):
            plugin.score(ASK, table)
            table.add(EXPECTED_TTFT_MS, np.array([100.0, 300.0]))
            plugin.score(ASK, table)
        if isinstance(plugin, Decider):
            plugin.is_worth_it(ASK, table, Target(table.endpoints[0], 1.0, 0, 0))


@pytest.mark.parametrize("name", TYPES)
def test_every_parameter_is_read_or_said_to_be_not_in_force(name: str) -> None:
    kind, read, known = TYPES[name], set[str](), dict[str, str]()
    for given in GIVEN.get(name, [{}]):
        parameters = msgspec.convert(given, kind.parameters)
        known |= dict(paths(parameters))
        use(kind, Watched(parameters, read))

    unread = {written for name, written in known.items() if name not in read}

    assert unread == kind.not_in_force
