"""Which prompts are kept for an engine that will be drained, and how warm they are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.protocol import MatchResult
from inferway.model import (
    Decision,
    Endpoint,
    KvConnector,
    KvTransfer,
    Prompt,
    Reason,
    Target,
    TokenIds,
)
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.llm_request import LLMRequest
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.routing.warm_prefixes import HALF_LIFE_SECONDS, WarmPrefixes
from inferway.scheduling.idle import idle

BLOCK = 4
NOBODYS = NoPrompts(Reason.NO_TOKENIZER, "not in this test")


class Gateway:
    """Routes prompts that are token ids to an engine with a connector, which then holds them."""

    def __init__(self, max_bytes: int = 1 << 20, connector: bool = True) -> None:
        transfer = KvTransfer(KvConnector.NIXL) if connector else None
        self.endpoint = Endpoint("e", "http://e", 0, kv_transfer=transfer)
        self.warm = WarmPrefixes(max_bytes)
        self.now = 0.0

    def routes(
        self, ids: TokenIds, held: int = 0, salt: str | None = None, model: str = "m"
    ) -> None:
        """`held`: blocks of it that the engine has already."""
        body = msgspec.json.encode({"model": model, "prompt": "", "cache_salt": salt})
        request = LLMRequest(
            request_id="r", target_model=model, body=PARSERS["/v1/completions"](body)
        )
        keys = BlockHasher(BLOCK).keys(ids)
        items = [Matched(Prompt(ids, keys), MatchResult({0: held} if held else {}))]
        candidates = idle([self.endpoint], BLOCK)
        candidates.now = self.now
        decision = Decision((Target(self.endpoint, 1.0, held, len(keys)),), Reason.KV_AWARE)
        served = ServedModel(model, NOBODYS)
        self.warm.on_request(Routed(request, served, {BLOCK: items}, decision, candidates), 0.0)

    def kept(self) -> list[int]:
        return [len(prefix.token_ids) for prefix in self.warm.prefixes()]


def prompt(tokens: int, start: int = 0) -> TokenIds:
    return np.arange(start, start + tokens, dtype=np.uint32)


def test_a_prompt_is_kept_as_the_array_that_it_was_matched_by() -> None:
    gateway, ids = Gateway(), prompt(10)
    gateway.routes(ids, salt="s", model="adapter")

    [prefix] = gateway.warm.prefixes()

    assert prefix.token_ids is ids
    assert (prefix.model, prefix.cache_salt) == ("adapter", "s")


def test_a_part_of_a_longer_array_is_copied_for_it_would_keep_the_rest() -> None:
    gateway, whole = Gateway(), prompt(1000)
    gateway.routes(whole[:12])

    [prefix] = gateway.warm.prefixes()

    assert prefix.token_ids.base is None
    assert prefix.token_ids.tolist() == list(range(12))


def test_nothing_is_kept_of_engines_without_a_connector() -> None:
    gateway = Gateway(connector=False)
    gateway.routes(prompt(40))

    assert len(gateway.warm) == gateway.warm.num_bytes == 0


def test_a_prompt_without_a_full_block_is_not_kept() -> None:
    gateway = Gateway()
    gateway.routes(prompt(BLOCK - 1))

    assert not gateway.kept()


def test_a_next_turn_takes_the_place_of_the_one_before() -> None:
    gateway = Gateway()
    gateway.routes(prompt(18))
    before = gateway.warm.num_bytes
    gateway.routes(prompt(40), held=6)

    assert gateway.kept() == [40]
    assert gateway.warm.num_bytes == before + 4 * 22


def test_the_same_prompt_is_kept_once() -> None:
    gateway = Gateway()
    for _ in range(3):
        gateway.routes(prompt(18), held=4)

    assert gateway.kept() == [18]
    assert gateway.warm.prefixes()[0].uses == 3


def test_prompts_that_part_are_kept_both() -> None:
    gateway, shared = Gateway(), prompt(20)
    for start in (100, 200):
        gateway.routes(np.concatenate([shared, prompt(20, start)]), held=5)

    assert gateway.kept() == [40, 40]


def test_models_are_kept_apart() -> None:
    gateway = Gateway()
    gateway.routes(prompt(18), model="m")
    gateway.routes(prompt(40), held=4, model="adapter")

    assert gateway.kept() == [18, 40]


def test_what_was_not_used_for_longest_goes_first() -> None:
    gateway = Gateway(max_bytes=3 * (400 + 500))
    for start in (1, 2, 3):
        gateway.routes(prompt(100, 1000 * start))
    gateway.routes(prompt(100, 1000), held=25)
    gateway.routes(prompt(100, 4000))

    kept = [int(prefix.token_ids[0]) for prefix in gateway.warm.prefixes()]
    assert kept == [3000, 1000, 4000]
    assert gateway.warm.num_bytes <= gateway.warm.max_bytes


@pytest.mark.parametrize(("idle_for", "warmth"), [(0.0, 2.0), (HALF_LIFE_SECONDS, 1.0)])
def test_what_is_used_often_and_lately_is_warm(idle_for: float, warmth: float) -> None:
    gateway = Gateway()
    gateway.routes(prompt(18))
    gateway.routes(prompt(40), held=4)

    assert gateway.warm.prefixes()[0].warmth(idle_for) == pytest.approx(warmth)


def test_nothing_of_a_prompt_is_in_what_is_shown_of_it() -> None:
    gateway = Gateway()
    gateway.routes(np.full(20, 987654, np.uint32), salt="s3cret")

    shown = repr(gateway.warm) + repr(gateway.warm.prefixes())

    assert "987654" not in shown
    assert "s3cret" not in shown
