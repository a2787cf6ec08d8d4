"""Which engines get token ids: those that take them, and are known to make the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from tests.fleet.worlds import no_events, no_prompts

from inferway.config import EngineSettings, PickerSettings, ProbeSettings, ServeSettings
from inferway.fleet.engine import Engine, ProbeState, ProofState
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import Prober
from inferway.fleet.tokens_once import RefusesTokens, build_tokens_once
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint, Reason
from inferway.prompts.served import NoPrompts, PromptSource, ServedModel

AGREES, DIFFERS, UNPROVEN = ProofState.AGREES, ProofState.DIFFERS, ProofState.UNPROVEN
ENDPOINT = Endpoint("e", "http://e", 0)


@dataclass
class Prompts:
    """Prompts that are made here, by a template that may show the time."""

    reads_clock: bool = False

    @property
    def local(self) -> Prompts:
        return self


def model(*, reads_clock: bool = False) -> ServedModel:
    return ServedModel("m", cast(PromptSource, Prompts(reads_clock)))


def facts(version: str | None = "0.32.0", owned_by: str | None = "vllm") -> EngineFacts:
    card = ModelCard("m", "/m", None, 4096, owned_by)
    return EngineFacts((card,), (), 16, (), version=version)


def engine(known: EngineFacts | None = None, proof: ProbeState | None = None) -> Engine:
    proofs = {} if proof is None else {"m": proof}
    return Engine(EngineSettings(url="http://e"), (), facts=known or facts(), proofs=proofs)


def prober(*differed: str) -> Prober:
    made = Prober(ProbeSettings(), {}, EngineClient(), lambda _, name: name, lambda: None)
    made.differed.update(differed)
    return made


def refusal(engine: Engine | None, *differed: str, trusts_unproven: bool = False) -> str | None:
    refuses = RefusesTokens(lambda _: engine, prober(*differed), trusts_unproven)
    return refuses(ENDPOINT, model(), is_compared=True)


@pytest.mark.parametrize(
    ("version", "owned_by", "compared", "others"),
    [
        ("0.32.0", "vllm", None, None),
        ("0.32.1rc1.dev7+g0123abc", "vllm", None, None),
        ("0.33.0", "vllm", None, None),
        ("0.34.0", "vllm", None, "newer-engine"),  # how it makes responses' prompts is not known
        ("0.100.2", "vllm", None, "newer-engine"),
        ("1.0.0", "vllm", None, "newer-engine"),
        ("0.31.9", "vllm", "engine", "engine"),
        ("0.9.2", "vllm", "engine", "engine"),
        ("0.1.dev1+gdeadbee", "vllm", "engine", "engine"),  # built without its tags
        ("dev", "vllm", "engine", "engine"),
        (None, "vllm", "engine", "engine"),
        ("1.2.0", "tensorrt_llm", "engine", "engine"),
        ("0.32.0", None, "engine", "engine"),
    ],
)
def test_an_engine_gets_them_that_says_it_is_a_vllm_that_takes_them(
    version: str | None, owned_by: str | None, compared: str | None, others: str | None
) -> None:
    asked = engine(facts(version, owned_by), ProbeState(AGREES, ""))
    refuses = RefusesTokens(lambda _: asked, prober())

    assert refuses(ENDPOINT, model(), is_compared=True) == compared
    assert refuses(ENDPOINT, model(), is_compared=False) == others


@pytest.mark.parametrize(
    ("proof", "by_default", "unproven_too"),
    [
        (ProbeState(AGREES, ""), None, None),
        (ProbeState(UNPROVEN), "unproven", None),
        (None, "unproven", None),
        (ProbeState(DIFFERS, "its template"), "differed", "differed"),
        (ProbeState(AGREES, "", live="one token"), "differed", "differed"),
    ],
)
def test_it_gets_them_once_it_is_proven_to_make_the_same(
    proof: ProbeState | None, by_default: str | None, unproven_too: str | None
) -> None:
    asked = engine(proof=proof)

    assert refusal(asked) == by_default
    assert refusal(asked, trusts_unproven=True) == unproven_too


@pytest.mark.parametrize("trusts_unproven", [False, True])
def test_a_model_of_which_a_live_prompt_has_ever_differed_gets_none(trusts_unproven: bool) -> None:
    proven = engine(proof=ProbeState(AGREES, ""))

    assert refusal(proven, "m", trusts_unproven=trusts_unproven) == "differed"
    assert refusal(proven, "another", trusts_unproven=trusts_unproven) is None


def test_an_engine_that_takes_none_or_has_gone_gets_none() -> None:
    assert refusal(engine(facts("0.31.0"), ProbeState(AGREES, ""))) == "engine"
    assert refusal(None) == "engine"


@pytest.mark.parametrize(
    "served",
    [model(reads_clock=True), ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "not here"))],
)
def test_a_model_whose_template_shows_the_time_gets_the_engine_s(served: ServedModel) -> None:
    refuses = RefusesTokens(lambda _: engine(proof=ProbeState(AGREES, "")), prober())

    assert refuses(ENDPOINT, served, is_compared=True) == "clock"


@pytest.mark.parametrize(
    ("settings", "picks", "is_built"),
    [
        ({}, False, True),
        ({}, True, True),
        ({"tokens_once": "on"}, True, True),
        ({"tokens_once": "off"}, False, False),
        ({"picker": PickerSettings(fallbacks=1)}, False, True),
        ({"picker": PickerSettings(fallbacks=1)}, True, False),  # one body for several engines
    ],
)
def test_it_is_built_where_a_body_is_made_for_one_engine(
    settings: dict[str, object], picks: bool, is_built: bool
) -> None:
    made = ServeSettings(engines=[EngineSettings(url="http://e")], **settings)  # type: ignore[arg-type]
    fleet = Fleet(made, MemoryIndex(), no_prompts, no_events)

    assert (build_tokens_once(made, fleet, picks=picks) is not None) is is_built
