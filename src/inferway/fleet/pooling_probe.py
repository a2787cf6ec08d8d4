"""Asks an engine of a pooling model which task the model has, and how it makes prompts of texts
that it compares. Both follow from its flags and overrides of its files, of which it tells nothing.

POST /pooling   with each task in turn: it refuses all but its own
POST /score     its usage is the number of tokens of all prompts, which tells the ways of joining
                texts (prompts/scoring_input.py) apart
"""

from __future__ import annotations

from typing import Any

import msgspec

from inferway.errors import FleetError, RequestError, UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.engine_token_ids import PROBE_SECONDS
from inferway.model import TokenIds
from inferway.openai_api.requests import parse_score
from inferway.openai_api.usage import usage_of
from inferway.prompts.scoring_input import NO_POOLING, Join, PoolingFacts, TokenizesScores, scored

_POOLING, _SCORE = "/pooling", "/score"
# Of the others engines read nothing from their cache. An embedding model joins no texts.
_JOINS = {"embed": (Join.APART,), "classify": (Join.TEMPLATE, Join.PAIR, Join.JOINED)}

# One query with several documents, for in total a pair has as many tokens as its two texts. Words
# are parted, so that they are fewer where one text is put behind the other.
BODIES: tuple[dict[str, Any], ...] = (
    {"text_1": "Where is the key", "text_2": ["board kept?", "stone of the arch?"]},
    {"text_1": "Sums of 12", "text_2": ["34", "ths and 56", " tow"], "instruction": "Count!"},
    {"text_1": "An inter", "text_2": ["national", "val of 3", "mission"]},
)


async def pooling_facts(
    client: EngineClient, engine: Engine, model: str, prompts: TokenizesScores
) -> PoolingFacts:
    """Raises UpstreamError if the engine gives no answer."""
    for task, joins in _JOINS.items():
        status, _ = await _post(
            client, engine, _POOLING, {"model": model, "task": task, "input": "a"}
        )
        if status == 200:
            return PoolingFacts(task, await _join(client, engine, model, prompts, joins))
    return NO_POOLING


async def _join(
    client: EngineClient,
    engine: Engine,
    model: str,
    prompts: TokenizesScores,
    joins: tuple[Join, ...],
) -> Join | None:
    """Return the one that makes as many tokens of each body as the engine does; None if there is
    none, or another one makes as many."""
    left: dict[Join, list[TokenIds]] = {join: [] for join in joins}
    for fields in BODIES:
        body = {"model": model, **fields}
        status, raw = await _post(client, engine, _SCORE, body)
        usage = usage_of(raw) if status == 200 else None
        if usage is None:
            return None
        for join in [*left]:
            made = await _made(prompts, body, join)
            if made is None or sum(map(len, made)) != usage.prompt:
                del left[join]
            else:
                left[join] += made
    if len(left) != 1:
        return None
    [(join, ids)] = left.items()
    engine.probed.extend(ids)  # it holds them now
    return join


async def _made(
    prompts: TokenizesScores, body: dict[str, Any], join: Join
) -> list[TokenIds] | None:
    try:
        return await prompts.tokenize_scores(scored(parse_score(msgspec.json.encode(body))), join)
    except (RequestError, FleetError):
        return None


async def _post(
    client: EngineClient, engine: Engine, path: str, body: dict[str, Any]
) -> tuple[int, bytes]:
    """Return the answer's status and content. Raises UpstreamError, also for a fault of the
    engine's that may pass."""
    status, raw = await client.post(
        engine.url, path, msgspec.json.encode(body), engine.headers, PROBE_SECONDS
    )
    if status == 429 or status >= 500:
        raise UpstreamError(f"{path} answered {status}")
    return status, raw
