"""The legs of a request: whether there are two, what asks for them, and their outcomes.

legs       the prompt's engine is asked by                             the decode engine gets
gateway    us (answer_plan)                                            what that engine returned
sidecar    llm-d's sidecar beside the decode engine                    x-prefiller-host-port
auto       us where we know how both hand blocks over, else a sidecar
off        nobody: the prompt is computed where it is answered         nothing

docs/kv-transfer.md has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from inferway.config import KvTransferSettings
from inferway.errors import BadReferenceError
from inferway.metrics import Family, counter
from inferway.model import Endpoint, Headers, KvConnector, SchedulingResult, Target
from inferway.openai_api.kv_transfer import why_one_leg
from inferway.openai_api.requests import Body

log = logging.getLogger("inferway.forward")

PREFILLER = b"x-prefiller-host-port"

_NIXL = frozenset({KvConnector.NIXL, KvConnector.NIXL_PUSH})

_SILENT_SECONDS = 60.0  # after a warning of an engine


@dataclass(slots=True)
class KvLegs:
    """Says which requests have two legs, and counts those. `lease_margin`: so many seconds before
    its end a lease is not used any more."""

    by: Literal["auto", "gateway", "sidecar", "off"] = "sidecar"
    lease_margin: float = 5.0
    prefills: dict[tuple[str, str], int] = field(default_factory=dict)  # by engine and outcome
    decodes: dict[str, int] = field(default_factory=dict)
    engine_ids: dict[str, str] = field(default_factory=dict)  # Mooncake's, of endpoints by name
    _warned: set[str] = field(default_factory=set)
    _silent_until: dict[str, float] = field(default_factory=dict)  # engines; times of the clock

    def split(self, choice: SchedulingResult, body: Body) -> tuple[Headers, tuple[Target, ...]]:
        """Return the headers that the decode engine needs, and where we ask for the prompt to be
        computed for the first target: nowhere, if that is the sidecar's task, or is not
        possible."""
        prefill = choice.prefill
        if not prefill or self.by == "off":
            return choice.headers, ()
        decode = choice.targets[0].endpoint
        first = prefill[0].endpoint
        is_known = decode.kv_transfer is not None and first.kv_transfer is not None
        if self.by == "sidecar" or (self.by == "auto" and not is_known):
            return (*choice.headers, (PREFILLER, first.host_port)), ()
        able = tuple([each for each in prefill if can_hand_over(each.endpoint, decode)])
        return choice.headers, able if able and why_one_leg(body) is None else ()

    def prefilled(self, engine: str, outcome: str) -> None:
        """Count a prefill leg that was to be the engine's."""
        self.prefills[engine, outcome] = self.prefills.get((engine, outcome), 0) + 1

    def warn(self, engine: str, error: BadReferenceError) -> None:
        """Log what an engine returned that no other engine may get; once for each engine."""
        if engine not in self._warned:
            self._warned.add(engine)
            log.warning(
                "engine %s computed a prompt for another one, and what it returned is not used:"
                " %s; prompts are computed where they are answered",
                *(engine, error),
            )

    def decoded(self, outcome: str) -> None:
        """Count a decode leg that was to get blocks of another engine."""
        self.decodes[outcome] = self.decodes.get(outcome, 0) + 1

    def say_failed(self, engine: str, why: object, now: float) -> None:
        """Log why an engine did not answer with the blocks of another one; once a minute for each
        engine."""
        if now >= self._silent_until.get(engine, now):
            self._silent_until[engine] = now + _SILENT_SECONDS
            log.warning(
                "engine %s did not answer with the blocks of another one: %s; the request is sent"
                " again (inferway_decode_legs_total counts these, the log has one a minute)",
                *(engine, why),
            )

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of legs."""
        yield counter(
            "prefill_legs",
            "Prompts that the engine was to compute for another one, by what came of it.",
            ["engine", "outcome"],
            self.prefills,
        )
        yield counter(
            "decode_legs",
            "Requests sent with the blocks of another engine, by whether the engine answered them,"
            " got them from a third one, or computed the prompt itself after a failure.",
            ["outcome"],
            {(outcome,): number for outcome, number in self.decodes.items()},
        )


def build_legs(settings: KvTransferSettings, *, picks: bool) -> KvLegs:
    """Return what the settings ask for. A picker sends nothing itself: its engines have sidecars,
    or no prefill leg."""
    by = "sidecar" if picks and settings.legs != "off" else settings.legs
    return KvLegs(by, settings.lease_margin_seconds)


def can_hand_over(prefill: Endpoint, decode: Endpoint) -> bool:
    """Return whether the one can compute a prompt for the other."""
    gives, takes = prefill.kv_transfer, decode.kv_transfer
    if gives is None or prefill.engine == decode.engine or not gives.hands_to(takes):
        return False
    return gives.connector in _NIXL or gives.bootstrap.rpartition(":")[2].isdigit()
