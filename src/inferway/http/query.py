"""POST /query: what each engine holds of token ids, as indexers tell gateways (Mooncake RFC #1403).

The RFC has changed, and its two implementations have parted from it. We take the names of all,
and answer in those that do not contradict each other. Numbers are in tokens.

request              from                meaning here
model, model_name    RFC; Dynamo         one of them
token_ids            all                 the prompt; only full blocks count
lora_name            all                 an adapter of the model; null or "": none
cache_salt           all                 as in the engine's requests; null or "": none
medium               RFC's first draft   tiers that are of interest: L1 L2 L3, or GPU CPU DISK
instance_id          Mooncake            one engine, or one rank of it (engine/rank)
block_size           Mooncake            only engines with blocks of that size
tenant_id            all                 "default" at most: tenants are kept apart by cache_salt
lora_id              RFC                 refused: requests know adapters by name

answer, for each engine, under `default` (RFC: the tenant), `instances` (Dynamo, Mooncake today)
and at the top (RFC's first draft)
longest_matched      all                 the longest prefix, over all ranks and tiers of interest
gpu cpu disk         Dynamo, Mooncake    prefix that lies in GPU; in GPU or CPU; in any tier
GPU CPU DISK         RFC                 the same
dp, DP               as those            rank -> its gpu
rank_matches         Mooncake            rank -> its gpu, cpu, disk

An engine that is called "default" or "instances" does not stand at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from inferway.errors import InvalidRequestError, RequestError
from inferway.fleet.scores import EngineScore, Scores
from inferway.openai_api.requests import decode_body

_TIERS = ("gpu", "cpu", "disk")
_LEVELS = {"l1": "gpu", "l2": "cpu", "l3": "disk"}

# What Indexer.score_tokens calls its arguments -> what they are called here.
_FIELDS = {"tokens": "token_ids", "lora": "lora_name", "engines": "instance_id"}


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: list[Any]  # checked where the model's context is known
    model: str | None = None
    model_name: str | None = None
    lora_name: str | None = None
    lora_id: Any = None
    cache_salt: str | None = None
    medium: list[str] | None = None
    instance_id: str | None = None
    block_size: int | None = None
    tenant_id: Any = None


class Query(msgspec.Struct, frozen=True):
    """A request for scores, checked as far as is possible without the fleet."""

    tokens: list[Any]
    model: str
    engines: Sequence[str] | None
    lora: str | None
    cache_salt: str | None
    block_size: int | None
    tiers: Sequence[str]  # of interest, best first


_DECODER = msgspec.json.Decoder(_Body)


def parse_query(raw: bytes) -> Query:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _DECODER)
    model = body.model or body.model_name
    if not model:
        raise InvalidRequestError("model: required field is missing", param="model")
    if body.lora_id is not None:
        raise InvalidRequestError(
            "lora_id: adapters are known by name; give lora_name", param="lora_id"
        )
    if body.tenant_id not in (None, "", "default"):
        raise InvalidRequestError(
            "tenant_id: there is one tenant, 'default'; give the tenant's cache_salt",
            param="tenant_id",
        )
    return Query(
        tokens=body.token_ids,
        model=model,
        engines=[body.instance_id] if body.instance_id else None,
        lora=body.lora_name or None,
        cache_salt=body.cache_salt or None,
        block_size=body.block_size,
        tiers=_tiers(body.medium),
    )


def query_answer(query: Query, scores: Scores) -> dict[str, Any]:
    """Raises InvalidRequestError if no engine has blocks of the size asked for."""
    found = list(scores.engines.values())
    if query.block_size is not None:
        found = [score for score in found if score.block_size == query.block_size]
        if not found:
            sizes = sorted({score.block_size for score in scores.engines.values()})
            raise InvalidRequestError(
                f"block_size: no engine of the model has {query.block_size}; known: "
                + ", ".join(map(str, sizes)),
                param="block_size",
            )
    engines: dict[str, list[EngineScore]] = {}
    for score in found:
        engines.setdefault(score.engine, []).append(score)
    instances = {name: _instance(ranks, query.tiers) for name, ranks in engines.items()}
    return {**instances, "default": instances, "instances": instances}


def in_our_fields(error: RequestError) -> RequestError:
    """Return an error of `Indexer.score_tokens` in the names of this request. Both its text and
    `param` begin with the argument's."""
    name, bracket, rest = (error.param or "").partition("[")
    if name not in _FIELDS:
        return error
    text = _FIELDS[name] + str(error).removeprefix(name)
    renamed = type(error)(text, param=_FIELDS[name] + bracket + rest)
    return renamed.with_traceback(error.__traceback__)


def _tiers(medium: Iterable[str] | None) -> Sequence[str]:
    wanted = set()
    for i, name in enumerate(medium or ()):
        tier = _LEVELS.get(name.lower(), name.lower())
        if tier not in _TIERS:
            raise InvalidRequestError(
                f"medium[{i}]: expected L1, L2 or L3, or GPU, CPU or DISK, got {name[:20]!r}",
                param=f"medium[{i}]",
            )
        wanted.add(tier)
    return [tier for tier in _TIERS if tier in wanted] or _TIERS


def _instance(ranks: Sequence[EngineScore], tiers: Sequence[str]) -> dict[str, Any]:
    by_rank: dict[str, Mapping[str, int]] = {}
    for score in ranks:
        tokens = dict(zip(_TIERS, (n * score.block_size for n in score.tiers), strict=True))
        by_rank[str(score.rank or 0)] = {tier: tokens[tier] for tier in tiers}
    best = {tier: max(rank[tier] for rank in by_rank.values()) for tier in tiers}
    instance: dict[str, Any] = {"longest_matched": max(best.values()), **best}
    instance |= {tier.upper(): tokens for tier, tokens in best.items()}
    if "gpu" in tiers:
        instance["dp"] = instance["DP"] = {rank: held["gpu"] for rank, held in by_rank.items()}
    instance["rank_matches"] = by_rank
    return instance
