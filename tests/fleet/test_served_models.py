"""What a model is, by what its engines say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine, ProbeState, ProofState
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.served_models import ServedModels
from inferway.model import Reason
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource

AGREES, DIFFERS, UNPROVEN = ProofState.AGREES, ProofState.DIFFERS, ProofState.UNPROVEN


class Learned:
    """Served models whose tokenizers cannot be had; `roots`: those that were asked for."""

    def __init__(self, number: int) -> None:
        self.roots: list[str] = []
        self._work: list[asyncio.Future[None]] = []
        self.engines = [
            Engine(EngineSettings(url=f"http://127.0.0.1:{n + 1}", name=f"e{n}"), ())
            for n in range(number)
        ]
        self.served = ServedModels(
            {}, self._load, lambda _, own: own, self._spawn, on_loaded=lambda _: None
        )

    async def _load(self, source: ModelSource) -> PromptSource:
        self.roots.append(source.root)
        return NoPrompts(Reason.TOKENIZER_LOADING, source.root)

    def _spawn(self, work: Awaitable[None]) -> None:
        self._work.append(asyncio.ensure_future(work))

    def tell(self, engine: int, root: str, length: int | None = None) -> None:
        told = self.engines[engine]
        told.facts = EngineFacts((ModelCard("m", root, None, length),), (), 16, ())
        told.healthy = True
        self.served.learn(told)
        self.refresh()

    def refresh(self) -> None:
        self.served.refresh({"m": [engine for engine in self.engines if engine.offers]})

    async def close(self) -> None:
        await asyncio.sleep(0)  # all have begun
        for work in self._work:
            work.cancel()

    @property
    def root(self) -> str:
        return self.served._sources["m"].root


async def test_another_place_is_read_when_no_engine_names_the_first_any_more() -> None:
    models = Learned(1)
    models.tell(0, "/a")
    models.tell(0, "/b")

    await models.close()
    assert models.roots == ["/a", "/b"]
    assert set(models.served.keys) == {models.served._sources["m"].key}


async def test_engines_may_have_the_same_files_at_different_places() -> None:
    models = Learned(2)
    models.tell(0, "/a")
    models.tell(1, "/b")
    models.engines[0].healthy = False
    models.refresh()

    await models.close()
    assert models.roots == ["/a"]


async def test_a_place_that_only_engines_name_that_are_gone_gives_way_to_another_model() -> None:
    models = Learned(2)
    models.tell(0, "/a")
    models.tell(1, "/b")
    models.engines[1].proofs["m"] = ProbeState(ProofState.DIFFERS, "other ids")
    models.refresh()
    both = models.root, models.served.by_name["m"].unfaithful
    models.engines[0].healthy = False
    models.refresh()

    await models.close()
    assert both[0] == "/a"
    assert both[1] is not None
    assert "engine e1 serves another model under this name, '/b' and not '/a'" in both[1]
    assert models.root == "/b"


async def test_messages_are_counted_if_every_engine_that_is_well_counts_the_same() -> None:
    models, found = Learned(2), []
    models.tell(0, "/a")
    models.tell(1, "/a")
    for states in ((AGREES, AGREES), (AGREES, UNPROVEN), (DIFFERS, AGREES)):
        for engine, state in zip(models.engines, states, strict=True):
            proof = engine.proofs["m"] = ProbeState(AGREES)
            proof.messages, proof.messages_why = state, "more" if state is DIFFERS else ""
        models.refresh()
        served = models.served.by_name["m"]
        found.append((served.counts_messages, served.unfaithful_messages, served.unfaithful))

    await models.close()
    assert found == [(True, None, None), (False, None, None), (False, "more", None)]


@pytest.mark.parametrize(
    ("lengths", "least", "most"),
    [((512, 4096), 512, 4096), ((512, 512), 512, 512), ((512, None), 512, None)],
)
async def test_lengths_are_those_of_its_engines(
    lengths: tuple[int | None, int | None], least: int, most: int | None
) -> None:
    models = Learned(2)
    for number, length in enumerate(lengths):
        models.tell(number, "/a", length)

    await models.close()
    contexts = models.served.by_name["m"].contexts

    assert (contexts.least, contexts.most) == (least, most)
    assert contexts.take("e0", 512)
    assert contexts.take("e0", 513) is (least == most)  # where all are equal, nothing is kept
    assert contexts.take("e1", 4096)
