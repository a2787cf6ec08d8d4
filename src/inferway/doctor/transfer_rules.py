"""Findings about the transfer of KV blocks between engines, both sides judged together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferway.config import EngineSettings, KvTransferSettings
from inferway.doctor.facts import EngineReport, GatewayReport
from inferway.doctor.rules import CheckResult, Level
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.kv_transfer import (
    BOTH,
    KvTransferFacts,
    kv_transfer_of,
    must_equal,
    side_channel_finding,
)
from inferway.model import DECODE_ROLES, PREFILL_ROLES, ROLE, KvConnector, KvTransfer

_DEFAULTS = KvTransferSettings()
# A decode engine renews the lease from when it has queued the request (vLLM 0.32,
# KC/nixl/base_scheduler.py); before, its API server has to read and tokenize it.
_LEAST_SECONDS = 5.0

_VLLM = (KvConnector.NIXL, KvConnector.NIXL_PUSH, KvConnector.MOONCAKE)
_RECOMPUTE = 'add "kv_load_failure_policy":"recompute" to its --kv-transfer-config'
_CONNECTOR_FLAG = (
    'start vLLM with --kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"%s"}\','
    " or if it has a connector that it does not tell, give it by hand: --engine"
    " URL,kv_connector=nixl"
)
_DEV_MODE = "start all with the same, and all or none with VLLM_SERVER_DEV_MODE=1, which tells it"
_MOONCAKE_ROLES = {"both": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}
_EQUAL_CURES = {
    "model": "start all with the same model, by the same path or hub id",
    "version": "run the same version on all",
    "dtype": "start all with the same --dtype and --kv-cache-dtype",
    "block size": "start all with the same --block-size",
    "connector": "start all with the same kv_connector",
}

_LEG_CURES = {
    "no-parameters": (
        "the engine computed the prompt and kept nothing for others, and it was computed again",
        "has it a connector (inferway doctor URL)? streams and aborted requests keep nothing",
    ),
    "malformed": (
        "what the engine returned lacks what vLLM 0.32 has",
        "run a version of vLLM that the gateway follows; its log names engine and field",
    ),
    "lease": (
        "the blocks' lease was about to end before another engine could ask for them",
        "raise kv_lease_duration in kv_connector_extra_config of the prefill engines",
    ),
    "no-bootstrap": (
        "the bootstrap server of the engine is not known, or does not answer",
        "give it by hand: --engine URL,kv_bootstrap=HOST:PORT",
    ),
}


@dataclass(frozen=True, slots=True)
class _Connected:
    """An engine with a connector."""

    settings: EngineSettings
    told: EngineFacts
    hands: KvTransfer

    @property
    def name(self) -> str:
        return self.settings.label

    @property
    def models(self) -> frozenset[str]:
        return frozenset(card.name for card in self.told.base_models)


def judge_transfers(engines: Sequence[EngineReport]) -> Iterator[CheckResult]:
    """Yield what is to be said of how these engines hand blocks to each other; nothing if none of
    them does, or is meant to."""
    connected = []
    for engine in engines:
        if engine.told is None:
            continue
        hands = kv_transfer_of(engine.settings, engine.told, _DEFAULTS.lease_seconds)
        if hands is not None:
            connected.append(_Connected(engine.settings, engine.told, hands))
        elif (role := engine.settings.all_labels.get(ROLE)) is not None:
            yield _no_connector(engine.settings.label, role)
    for each in connected:
        yield from _alone(each)
    yield from _stages(engines)
    for each in connected:
        yield from _partners(each, connected)


def _no_connector(name: str, role: str) -> CheckResult:
    evidence = f"its role is {role!r}, and no connector is known: nobody hands it KV blocks, or"
    evidence += " takes its own"
    kv_role = "kv_producer" if role not in DECODE_ROLES else "kv_consumer"
    return CheckResult(Level.WARN, f"engine {name}", evidence, _CONNECTOR_FLAG % kv_role)


def _alone(found: _Connected) -> Iterator[CheckResult]:
    """What one engine shows."""
    subject, hands = f"engine {found.name}", found.hands
    evidence = (
        f"hands over KV blocks by {hands.connector}, role {hands.role}, with leases of"
        f" {hands.lease_seconds:g} s"
    )
    told = found.told.kv_transfer
    if told is None or told.connector is not hands.connector:
        told = KvTransferFacts(hands.connector)  # by hand
    if told.kv_role == BOTH and hands.connector is KvConnector.NIXL:
        evidence += "; vLLM 0.32 calls kv_role kv_both deprecated, with kv_consumer it does both"
    yield CheckResult(Level.OK, subject, evidence)
    fault = side_channel_finding(found.settings, found.told)
    if fault is not None:
        yield CheckResult(Level.WARN, subject, fault)  # its sentence holds the cure
    if hands.takes and hands.connector in _VLLM and told.recomputes is not True:
        yield _policy(subject, told.recomputes)
    if (hands.takes and not told.takes) or (hands.gives and not told.gives):
        yield _wrong_role(subject, hands, told)
    left = hands.lease_seconds - _DEFAULTS.lease_margin_seconds
    if hands.gives and hands.connector in _VLLM and left < _LEAST_SECONDS:
        evidence = (
            f"its leases last {hands.lease_seconds:g} s, less a margin of"
            f" {_DEFAULTS.lease_margin_seconds:g} s: others have {max(left, 0):g} s to queue the"
            f" request, expected at least {_LEAST_SECONDS:g} s"
        )
        cure = 'raise "kv_lease_duration" in kv_connector_extra_config of its --kv-transfer-config'
        yield CheckResult(Level.WARN, subject, evidence, cure)


def _policy(subject: str, recomputes: bool | None) -> CheckResult:
    if recomputes is None:
        evidence = (
            "whether it computes what it could not load cannot be seen from here"
            " (VLLM_SERVER_DEV_MODE=1 tells it); by default the request fails, and the gateway"
            " has to send it again"
        )
        return CheckResult(Level.WARN, subject, evidence, f"if it is not set: {_RECOMPUTE}")
    evidence = (
        "kv_load_failure_policy is 'fail': a prefill engine that dies fails requests here, which"
        " the gateway has to send again"
    )
    return CheckResult(Level.WARN, subject, evidence, _RECOMPUTE)


def _wrong_role(subject: str, hands: KvTransfer, told: KvTransferFacts) -> CheckResult:
    if hands.connector is KvConnector.SGLANG:
        evidence = f"its role is {hands.role!r}, and its disaggregation mode is another"
        cure = "give it the role that it has, or start it with another --disaggregation-mode"
        return CheckResult(Level.FAIL, subject, evidence, cure)
    if hands.connector is KvConnector.MOONCAKE:
        what, kv_role = "the other leg ends its core", _MOONCAKE_ROLES.get(hands.role, "")
    else:
        what = (
            "it frees blocks while a step may still write them, and answers from blocks of others"
            " may be wrong"
        )
        kv_role = "kv_consumer"  # does both
    evidence = f"its role is {hands.role!r}, and its kv_role {told.kv_role!r}: {what}"
    cure = f"start it with kv_role {kv_role!r}, or give it the role that it has"
    return CheckResult(Level.FAIL, subject, evidence, cure)


def _stages(engines: Sequence[EngineReport]) -> Iterator[CheckResult]:
    """Models for which nobody has one of the roles, if some have any."""
    roles: dict[str, list[str | None]] = {}
    for engine in engines:
        for card in engine.told.base_models if engine.told is not None else ():
            roles.setdefault(card.name, []).append(engine.settings.all_labels.get(ROLE))
    for model, given in roles.items():
        if all(role is not None and role not in DECODE_ROLES for role in given):
            evidence = f"model {model}: roles leave nobody to decode: {_listed(given)}"
            cure = "give one of its engines the role decode or both, or no role"
            yield CheckResult(Level.FAIL, "fleet", evidence, cure)
        elif all(role is not None and role not in PREFILL_ROLES for role in given):
            evidence = f"model {model}: roles leave nobody to prefill for others: {_listed(given)}"
            cure = "give one of its engines the role prefill or both, or leave the roles out"
            yield CheckResult(Level.WARN, "fleet", evidence, cure)


def _listed(roles: Sequence[str | None]) -> str:
    return ", ".join(sorted({str(role) for role in roles}))


def _partners(found: _Connected, connected: Sequence[_Connected]) -> Iterator[CheckResult]:
    """What keeps an engine from having anybody to hand blocks to, or to take them from."""
    subject, hands = f"engine {found.name}", found.hands
    others = [o for o in connected if o is not found and o.models & found.models]
    if hands.role == "none":
        return
    if any(hands.hands_to(o.hands) or o.hands.hands_to(hands) for o in others):
        return
    able = [o for o in others if (hands.gives and o.hands.takes) or (o.hands.gives and hands.takes)]
    if not able:
        evidence = "it has a connector, and no other engine of its model has one for the other leg"
        cure = "give the gateway and the doctor all engines of the model; " + (
            _CONNECTOR_FLAG % ("kv_consumer" if not hands.takes else "kv_producer")
        )
        yield CheckResult(Level.WARN, subject, evidence, cure)
        return
    differing, cures = zip(*_differences(found, able[0]), strict=True)
    evidence = f"it can neither hand KV blocks to {able[0].name} nor take them: "
    yield CheckResult(Level.FAIL, subject, evidence + ", ".join(differing), "; ".join(cures))


def _differences(one: _Connected, other: _Connected) -> Iterator[tuple[str, str]]:
    """What must be equal and is not, each with its cure."""
    pairs = {"connector": (one.hands.connector.value, other.hands.connector.value)}
    theirs = must_equal(other.told)
    pairs |= {name: (value, theirs[name]) for name, value in must_equal(one.told).items()}
    for name, (value, its) in pairs.items():
        if value != its:
            cure = _DEV_MODE if "?" in (value, its) and name == "dtype" else _EQUAL_CURES[name]
            yield f"{name} {_shown(value)} here, {_shown(its)} there", cure


def _shown(value: str) -> str:
    return "unknown" if value == "?" else value


def judge_legs(found: GatewayReport) -> Iterator[CheckResult]:
    """Yield what became of prompts that one engine was to compute for another."""
    subject, legs = f"gateway {found.url}", found.prefill_legs
    every = sum(legs.values())
    if every:
        fine = sum(number for (_, outcome), number in legs.items() if outcome == "ok")
        evidence = f"{fine} of {every} prompts were computed by one engine for another"
        yield CheckResult(Level.OK, subject, evidence)
    for (engine, outcome), number in sorted(legs.items()):
        if outcome in _LEG_CURES and number:
            what, cure = _LEG_CURES[outcome]
            evidence = f"{number} prefill legs of engine {engine} ended as {outcome!r}: {what}"
            yield CheckResult(Level.WARN, subject, evidence, cure)
