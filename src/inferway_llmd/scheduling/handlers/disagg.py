"""Disaggregated serving: the engine that answers learns which others do the stages before.

stage      runs when                                   header for the engine
decode     always; it answers                          -
encode     its decider says so                         x-encoder-hosts-ports: host:port,host:port
prefill    its decider says so                         x-prefiller-host-port: host:port

vLLM's sidecar (llm-d-routing-sidecar) beside the decode engine reads the headers, asks those
engines first and then its own. A stage that finds no endpoint is left out: then the engine that
answers does it, too. `prefill-first` chooses where to prefill before where to decode, always. A
prompt that its engine would not read from a cache is never prefilled elsewhere: vLLM would compute
it once more (`skip_reading_prefix_cache`).
(llm-d-router ebab687, profilehandler/disagg.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from inferway.errors import ConfigError, NoEndpointError
from inferway.model import Candidates, Endpoint, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import reads_cache
from inferway.scheduling.columns import PEER
from inferway.scheduling.plugin import Decider, ProfileHandler
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway_llmd.scheduling import topology

_NEAR = frozenset({topology.FILTER_TYPE, topology.SCORER_TYPE})

ENCODERS = b"x-encoder-hosts-ports"


class Stages(Parameters, frozen=True):
    decode: str = ""
    prefill: str = ""
    encode: str = ""


class Deciders(Parameters, frozen=True):
    prefill: str = ""
    encode: str = ""


class DisaggParameters(Parameters, frozen=True):
    stage_order: Literal["decode-first", "prefill-first"] = "decode-first"
    profiles: Stages = Stages()
    deciders: Deciders = Deciders()
    # older names
    decode_profile: str = ""
    prefill_profile: str = ""
    encode_profile: str = ""
    prefill_decider_plugin_name: str = ""
    decider_plugin_name: str = ""
    encode_decider_plugin_name: str = ""


class Stage(msgspec.Struct, frozen=True):
    """A stage that may run on engines of its own. Without a decider it never does."""

    name: str  # of its profile
    profile: ProfileHandler
    decider: Decider | None

    def run(
        self, request: LLMRequest, candidates: Candidates, target: Target | None
    ) -> tuple[Target, ...]:
        """Return where it is to be done; () if where the answer is."""
        if self.decider is None or not self.decider.is_worth_it(request, candidates, target):
            return ()
        return self.anyhow(request, candidates)

    def anyhow(self, request: LLMRequest, candidates: Candidates) -> tuple[Target, ...]:
        """Return where it is to be done, whatever a decider says."""
        try:
            return self.profile.choose(request, candidates).targets
        except NoEndpointError:
            return ()


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Chooses endpoints for each stage of a request; the module's docstring has the rules."""

    decode_name: str
    decode: ProfileHandler
    prefill: Stage | None = None
    encode: Stage | None = None
    prefill_first: bool = False
    names_peer: bool = False  # plugins look for where the other of prefill and decode is

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        prefillers: tuple[Target, ...] = ()
        encoders: tuple[Target, ...] = ()
        prefill = self.prefill if reads_cache(request.body) else None
        if self.prefill_first:
            if prefill is not None:
                prefillers = prefill.anyhow(request, candidates)
            if prefillers and self.names_peer:
                _name_peer(candidates, prefillers[0].endpoint)
            if self.encode is not None:
                encoders = self.encode.run(request, candidates, None)
        choice = self.decode.choose(request, candidates)
        if not self.prefill_first:
            target = choice.targets[0]
            if self.encode is not None:
                encoders = self.encode.run(request, candidates, target)
            if prefill is not None:
                if self.names_peer:
                    _name_peer(candidates, target.endpoint)
                prefillers = prefill.run(request, candidates, target)
        return SchedulingResult(
            choice.targets,
            (*choice.headers, *_headers(encoders)),
            self._others(prefillers, encoders),
            self.decode_name,
            prefillers,
        )

    def _others(
        self, prefillers: tuple[Target, ...], encoders: tuple[Target, ...]
    ) -> Mapping[str, Target]:
        stages = ((self.prefill, prefillers), (self.encode, encoders))
        return {stage.name: targets[0] for stage, targets in stages if stage and targets}


def _headers(encoders: tuple[Target, ...]) -> Headers:
    if not encoders:
        return ()
    return ((ENCODERS, b",".join([each.endpoint.host_port for each in encoders])),)


def _build(parameters: DisaggParameters, building: Building) -> Disaggregated:
    p = _without_older_names(parameters)
    prefill_first = p.stage_order == "prefill-first"
    if prefill_first and p.deciders.prefill:
        raise ConfigError(
            f"deciders.prefill: {p.deciders.prefill!r}: prefill-first has none, for it always "
            "prefills; leave it out"
        )
    decode = p.profiles.decode or "decode"
    return Disaggregated(
        decode,
        _decode(decode, building),
        _stage("prefill", p.profiles.prefill or "prefill", p.deciders.prefill, building),
        _stage("encode", p.profiles.encode or "encode", p.deciders.encode, building),
        prefill_first,
        _names_peer(building),
    )


def _without_older_names(p: DisaggParameters) -> DisaggParameters:
    older = Stages(decode=p.decode_profile, prefill=p.prefill_profile, encode=p.encode_profile)
    prefill = p.prefill_decider_plugin_name or p.decider_plugin_name
    deciders = Deciders(prefill=prefill, encode=p.encode_decider_plugin_name)
    if older == Stages() and deciders == Deciders():
        return p
    if p.profiles != Stages() or p.deciders != Deciders():
        raise ConfigError(
            "profiles and deciders stand beside their older names (decodeProfile, "
            "deciderPluginName, ...); use one or the other"
        )
    return msgspec.structs.replace(p, profiles=older, deciders=deciders)


def _decode(name: str, building: Building) -> ProfileHandler:
    profile = building.profiles.get(name)
    if profile is None:
        raise ConfigError(
            f"profiles.decode: {name!r} is no profile; known: "
            + ", ".join(sorted(building.profiles))
        )
    return profile


def _stage(kind: str, name: str, decider: str, building: Building) -> Stage | None:
    """None: there is no such profile."""
    found = building.plugins.get(decider) if decider else None
    if decider and not isinstance(found, Decider):
        known = [each for each, plugin in building.plugins.items() if isinstance(plugin, Decider)]
        raise ConfigError(
            f"deciders.{kind}: {decider!r} is no decider among the plugins; known: "
            + (", ".join(sorted(known)) or "none")
        )
    profile = building.profiles.get(name)
    if profile is None:
        if decider:
            raise ConfigError(
                f"profiles.{kind}: {name!r} is no profile; known: "
                + ", ".join(sorted(building.profiles))
            )
        return None
    return Stage(name, profile, found if isinstance(found, Decider) else None)


def _names_peer(building: Building) -> bool:
    return not _NEAR.isdisjoint(building.types.values())


def _name_peer(candidates: Candidates, peer: Endpoint) -> None:
    peers = np.empty(len(candidates.endpoints), np.object_)
    peers[:] = peer
    candidates.add(PEER, peers)


TYPE = PluginType(
    "disagg-profile-handler",
    "uses the profiles decode, prefill and encode, and tells the decoding engine which engines do "
    "the other stages",
    _build,
    DisaggParameters,
    is_handler=True,
)
