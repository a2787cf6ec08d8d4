"""The body of POST /query -> what is asked; scores -> the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferway.errors import (
    InvalidRequestError,
    NoEndpointError,
    PromptTooLongError,
    UnknownModelError,
)
from inferway.fleet.scores import EngineScore, Scores
from inferway.http.query import Query, in_our_fields, parse_query, query_answer
from inferway.model import Reason


def query(**fields: Any) -> Query:
    return parse_query(msgspec.json.encode({"model": "m", "token_ids": [1, 2], **fields}))


def held(
    engine: str = "a",
    rank: int | None = None,
    tiers: tuple[int, int, int] = (0, 0, 0),
    size: int = 16,
) -> EngineScore:
    return EngineScore(engine, rank, "exact", size, 9, tiers[2], float(tiers[2]), tiers)


def answer(*engines: EngineScore, **fields: Any) -> dict[str, Any]:
    scores = Scores("m", 150, Reason.KV_AWARE, {engine.name: engine for engine in engines})
    return query_answer(query(**fields), scores)


# what is asked


def test_the_smallest_query_asks_for_everything() -> None:
    assert query() == Query([1, 2], "m", None, None, None, None, ("gpu", "cpu", "disk"))


def test_dynamo_calls_the_model_model_name() -> None:
    raw = b'{"model_name": "m", "token_ids": []}'

    assert parse_query(raw).model == "m"


def test_every_field_has_its_meaning() -> None:
    asked = query(
        lora_name="l", cache_salt="s", instance_id="e/1", block_size=32, tenant_id="default"
    )

    assert asked == Query([1, 2], "m", ["e/1"], "l", "s", 32, ("gpu", "cpu", "disk"))


def test_what_is_empty_or_null_is_absent() -> None:
    nothing = dict.fromkeys(("lora_name", "cache_salt", "instance_id", "tenant_id"), "")
    null = dict.fromkeys((*nothing, "medium", "block_size", "lora_id"))

    assert query(**nothing) == query(**null) == query(medium=[]) == query()


@pytest.mark.parametrize(
    ("medium", "tiers"),
    [
        (["L1"], ["gpu"]),
        (["L3", "L1"], ["gpu", "disk"]),
        (["CPU", "gpu"], ["gpu", "cpu"]),
        (["L1", "L2", "L3"], ["gpu", "cpu", "disk"]),
    ],
)
def test_tiers_go_by_both_of_their_names(medium: list[str], tiers: list[str]) -> None:
    assert query(medium=medium).tiers == tiers


@pytest.mark.parametrize(
    ("raw", "message", "param"),
    [
        (b'{"token_ids": [1]}', "model: required field is missing", "model"),
        (b'{"model": ""}', "token_ids: required field is missing", "token_ids"),
        (b'{"model": "", "token_ids": []}', "model: required field is missing", "model"),
        (
            b'{"model": "m", "token_ids": "1"}',
            "token_ids: expected `array`, got `str`",
            "token_ids",
        ),
        (b'{"model": 1, "token_ids": []}', "model: expected `str | null`, got `int`", "model"),
        (
            b'{"model": "m", "token_ids": [], "medium": ["L1", "L4"]}',
            "medium[1]: expected L1, L2 or L3, or GPU, CPU or DISK, got 'L4'",
            "medium[1]",
        ),
        (
            b'{"model": "m", "token_ids": [], "tenant_id": "b"}',
            "tenant_id: there is one tenant, 'default'; give the tenant's cache_salt",
            "tenant_id",
        ),
        (
            b'{"model": "m", "token_ids": [], "lora_id": 3}',
            "lora_id: adapters are known by name; give lora_name",
            "lora_id",
        ),
        (b"[]", "body: expected `object`, got `array`", None),
    ],
)
def test_what_cannot_hold_is_refused_by_its_field(raw: bytes, message: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_query(raw)

    assert (str(refused.value), refused.value.param) == (message, param)


# what is answered


def test_an_engine_is_answered_in_tokens_and_in_every_spelling() -> None:
    row = {
        "longest_matched": 64,
        "gpu": 32,
        "cpu": 48,
        "disk": 64,
        "GPU": 32,
        "CPU": 48,
        "DISK": 64,
        "dp": {"0": 32},
        "DP": {"0": 32},
        "rank_matches": {"0": {"gpu": 32, "cpu": 48, "disk": 64}},
    }

    assert answer(held(tiers=(2, 3, 4))) == {
        "a": row,
        "default": {"a": row},
        "instances": {"a": row},
    }


def test_an_engine_that_holds_nothing_is_there_with_zeros() -> None:
    row = answer(held())["a"]

    assert (row["longest_matched"], row["gpu"], row["dp"], row["DP"]) == (0, 0, {"0": 0}, {"0": 0})


def test_ranks_are_one_engine_and_the_best_of_them_counts() -> None:
    """Each number is the best rank's, as Mooncake and Dynamo do it: they may be of two ranks."""
    row = answer(held(rank=0, tiers=(8, 8, 8)), held(rank=1, tiers=(0, 9, 9)))["a"]

    assert row["longest_matched"] == row["cpu"] == row["disk"] == 9 * 16
    assert row["gpu"] == 8 * 16
    assert row["dp"] == row["DP"] == {"0": 128, "1": 0}
    assert row["rank_matches"]["1"] == {"gpu": 0, "cpu": 144, "disk": 144}


def test_tiers_that_are_of_no_interest_are_left_out() -> None:
    row = answer(held(tiers=(2, 3, 4)), medium=["L2"])["a"]

    assert row == {
        "longest_matched": 48,
        "cpu": 48,
        "CPU": 48,
        "rank_matches": {"0": {"cpu": 48}},
    }


def test_engines_of_another_block_size_are_left_out_when_one_is_given() -> None:
    found = answer(held("a", size=16), held("b", size=64), block_size=64)

    assert found.keys() == {"b", "default", "instances"}
    with pytest.raises(InvalidRequestError, match=r"block_size: no engine .* has 8; known: 16, 64"):
        answer(held("a", size=16), held("b", size=64), block_size=8)


@pytest.mark.parametrize("name", ["instances", "default"])
def test_an_engine_of_an_unlucky_name_hides_nobody(name: str) -> None:
    found = answer(held(name), held("b"))

    assert found.keys() == {"default", "instances", "b"}
    assert found["instances"].keys() == found["default"].keys() == {name, "b"}


# errors of the indexer


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        (
            PromptTooLongError("tokens: 9 are more", param="tokens"),
            "token_ids: 9 are more",
            "token_ids",
        ),
        (
            InvalidRequestError("tokens[3]: expected", param="tokens[3]"),
            "token_ids[3]: expected",
            "token_ids[3]",
        ),
        (UnknownModelError("lora: no", param="lora"), "lora_name: no", "lora_name"),
        (InvalidRequestError("engines: no", param="engines"), "instance_id: no", "instance_id"),
        (UnknownModelError("model: no", param="model"), "model: no", "model"),
        (InvalidRequestError("body: no"), "body: no", None),
    ],
)
def test_errors_speak_of_the_fields_that_were_sent(
    error: InvalidRequestError, message: str, param: str | None
) -> None:
    found = in_our_fields(error)

    assert (type(found), str(found), found.param) == (type(error), message, param)
    assert found.status == NoEndpointError.status or found.status < 500
