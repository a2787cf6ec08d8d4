"""The engines of a fleet that get a prompt's token ids, and so do not tokenize it a second time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferway.config import ServeSettings
from inferway.fleet.engine import Engine, ProofState
from inferway.fleet.engine_facts import NEWEST_VLLM
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import Prober
from inferway.model import Endpoint
from inferway.prompts.served import ServedModel
from inferway.routing.continuing import Continuing
from inferway.routing.journey import Routed
from inferway.routing.tokens_once import LEAST_TOKENS, TokensOnce

# The first version whose code openai_api/tokens_once.py follows. Later ones than NEWEST_VLLM take
# ids, too. How they make prompts is seen in live ones, but for kinds of requests of which no engine
# tells the ids.
OLDEST_FOLLOWED = (0, 32)

OLD_ENGINE, NEW_ENGINE = "engine", "newer-engine"
CLOCK, DIFFERED, UNPROVEN = "clock", "differed", "unproven"


def build_tokens_once(settings: ServeSettings, fleet: Fleet, *, picks: bool) -> TokensOnce | None:
    """Return what the settings ask for; None if engines are to tokenize all prompts themselves. A
    picker that names several engines gives one body for all of them, whoever takes it."""
    if settings.tokens_once == "off" or (picks and settings.picker.fallbacks):
        return None
    trusts = settings.tokens_once == "on"
    refuses = RefusesTokens(fleet.engine, fleet.prober, trusts_unproven=trusts)
    return TokensOnce(refuses, least=1 if trusts else LEAST_TOKENS)


def build_continuing(
    settings: ServeSettings, fleet: Fleet, once: TokensOnce | None, *, picks: bool
) -> Continuing | None:
    """Return what keeps streams for other engines to go on with, if the settings ask for it. A
    picker's answers pass elsewhere, or in pieces that it only sees. `once` says of which prompts
    the engines make the same ids as we do; None: of none."""
    if picks or not settings.continue_streams:
        return None
    return Continuing(TakesTokens(fleet.engine), _knows_none if once is None else once.knows)


def _knows_none(routed: Routed, endpoint: Endpoint) -> bool:
    del routed, endpoint
    return False


@dataclass(frozen=True, slots=True)
class TakesTokens:
    """Says whether an endpoint takes token ids as the prompt of a chat, and tells those of its
    answer."""

    engine: Callable[[str], Engine | None]  # by name

    def __call__(self, endpoint: Endpoint) -> bool:
        version = _version(self.engine(endpoint.engine))
        return version is not None and version >= OLDEST_FOLLOWED


def _version(engine: Engine | None) -> tuple[int, int] | None:
    return None if engine is None or engine.facts is None else engine.facts.vllm_version


@dataclass(frozen=True, slots=True)
class RefusesTokens:
    """Says why an endpoint gets no token ids of a model's prompts. `trusts_unproven`: the probe
    need not have seen that it makes the same, but must not have seen that it makes others."""

    engine: Callable[[str], Engine | None]  # by name
    prober: Prober
    trusts_unproven: bool = False

    def __call__(self, endpoint: Endpoint, model: ServedModel, *, is_compared: bool) -> str | None:
        """Return a label for metrics; None if it gets them. `is_compared`: live prompts of the kind
        are compared with the engine's."""
        engine = self.engine(endpoint.engine)
        version = _version(engine)
        if engine is None or version is None or version < OLDEST_FOLLOWED:
            return OLD_ENGINE
        if version > NEWEST_VLLM and not is_compared:
            return NEW_ENGINE
        local = model.prompts.local
        if local is None or local.reads_clock:  # the engine's clock is what counts
            return CLOCK
        subject = self.prober.subject(engine, model.name)
        proof = engine.proofs.get(subject)
        if subject in self.prober.differed or (proof is not None and proof.fault is not None):
            return DIFFERED
        if self.trusts_unproven or (proof is not None and proof.state is ProofState.AGREES):
            return None
        return UNPROVEN
