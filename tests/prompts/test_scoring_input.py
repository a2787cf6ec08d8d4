"""The prompts of texts that are compared are those that vLLM makes of them, or they are left to the
engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.prompts.conftest import write_model

from inferway.config import ModelSettings
from inferway.errors import RenderError, RequestError
from inferway.model import ContextLengths, Reason
from inferway.openai_api.requests import parse_rerank, parse_score
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.scoring_input import Join, PoolingFacts
from inferway.prompts.served import ServedModel
from inferway.prompts.version_rules import OLDER_RULES

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_scores.jsonl.gz"

Row = dict[str, Any]
MakePrompts = Callable[[str], ModelPrompts]


@pytest.fixture(scope="module")
def rows(read_golden: Callable[[Path], list[Row]]) -> list[Row]:
    return read_golden(GOLDEN)


@pytest.fixture(scope="module")
def make_prompts(
    rows: list[Row], renderer: Renderer, tmp_path_factory: pytest.TempPathFactory
) -> MakePrompts:
    meta = rows[0]
    made: dict[str, ModelPrompts] = {}
    parent = tmp_path_factory.mktemp("scores")
    contexts = ContextLengths(meta["max_model_len"], meta["max_model_len"])
    flags = ModelSettings(chat_template=meta["template"])

    def make(tokenizer: str) -> ModelPrompts:
        if tokenizer not in made:
            bos = "<s>" if tokenizer == "phi-3" else "<|endoftext|>"
            path = write_model(
                parent,
                tokenizer,
                meta["changes"][tokenizer],
                tokenizer_class="PreTrainedTokenizerFast",
                bos_token=bos,
            )
            asked = GetOrCreateTokenizerKeyRequest(str(path), is_local=True)
            key = renderer.get_or_create_tokenizer_key(asked)
            made[tokenizer] = ModelPrompts(renderer, key, flags=flags).within(contexts, OLDER_RULES)
        return made[tokenizer]

    return make


async def ids_of(prompts: ModelPrompts, join: Join, body: Row) -> list[list[int]] | None:
    parse = parse_rerank if "query" in body else parse_score
    model = ServedModel("m", prompts, caches_prefixes=True, pooling=PoolingFacts("classify", join))
    try:
        request = parse(msgspec.json.encode(body))
        return [ids.tolist() for ids in (await request.tokenized_by(model)).token_ids]
    except (RequestError, RenderError):
        return None


@pytest.mark.parametrize("join", Join)
@pytest.mark.parametrize("tokenizer", ["phi-3", "starcoder"])
async def test_prompts_are_those_that_vllm_makes_of_them(
    rows: list[Row], make_prompts: MakePrompts, tokenizer: str, join: Join
) -> None:
    bodies = [row["body"] for row in rows if "body" in row]
    of = {"tokenizer": tokenizer, "join": join}
    [theirs] = [row["ids"] for row in rows if of.items() <= row.items()]
    ours = [await ids_of(make_prompts(tokenizer), join, body) for body in bodies]

    known = [each for each in zip(bodies, ours, theirs, strict=True) if each[1] is not None]
    assert [each for each in known if each[1] != each[2]] == []
    assert len(known) > 0.7 * sum(ids is not None for ids in theirs)


LONG = "a long text " * 450_000


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (msgspec.json.encode({"text_1": "a", "text_2": ["b"] * 10_000}), Reason.MANY_PROMPTS),
        (msgspec.json.encode({"text_1": LONG, "text_2": ["b"] * 200}), Reason.EMBEDDINGS),
        (msgspec.json.encode({"text_1": "a", "text_2": ["b", LONG]}), Reason.EMBEDDINGS),
        (b'{"text_1": "\\ud800", "text_2": "b"}', Reason.EMBEDDINGS),
        (b'{"text_1": "a", "text_2": {"content": []}}', Reason.EMBEDDINGS),
        (b'{"text_1": [["a"]], "text_2": "b"}', Reason.EMBEDDINGS),
        (b'{"text_1": "a", "text_2": "b", "truncation_side": "up"}', Reason.EMBEDDINGS),
        (b'{"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 1e9}', Reason.EMBEDDINGS),
        (b'{"text_1": "a"}', Reason.EMBEDDINGS),
        (b"{}", Reason.EMBEDDINGS),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("join", Join)
async def test_what_is_bad_or_too_large_is_left_to_the_engine(
    make_prompts: MakePrompts, join: Join, raw: bytes, reason: Reason
) -> None:
    facts = PoolingFacts("classify", join)
    model = ServedModel("m", make_prompts("starcoder"), caches_prefixes=True, pooling=facts)

    with pytest.raises(RenderError) as raised:
        await parse_score(raw).tokenized_by(model)

    assert raised.value.reason is reason


async def test_scores_of_engines_whose_join_is_not_known_go_by_load(
    make_prompts: MakePrompts,
) -> None:
    model = ServedModel("m", make_prompts("starcoder"), caches_prefixes=True)

    with pytest.raises(RenderError, match="not known"):
        await parse_score(b'{"text_1": "a", "text_2": "b"}').tokenized_by(model)


async def test_scores_of_engines_that_keep_no_prompts_go_by_load(
    make_prompts: MakePrompts,
) -> None:
    model = ServedModel("m", make_prompts("starcoder"), pooling=PoolingFacts("embed", Join.APART))

    with pytest.raises(RenderError, match="keep no prompts"):
        await parse_score(b'{"text_1": "a", "text_2": "b"}').tokenized_by(model)
