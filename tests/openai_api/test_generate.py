"""Bodies of /inference/v1/generate. Which token ids vLLM takes was seen on a running 0.32."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway.errors import InvalidRequestError, PromptTooLongError, RenderError
from inferway.model import ContextLengths, Reason, Tokenized
from inferway.openai_api.edits import with_cache_salt
from inferway.openai_api.generate import GenerateRequest
from inferway.openai_api.kv_transfer import prefill_body, why_one_leg
from inferway.openai_api.requests import parse_generate, reads_cache, tells_its_reuse
from inferway.openai_api.shapes import shape_fields
from inferway.openai_api.tokens_once import why_text
from inferway.prompts.served import NoPrompts, ServedModel

NO_TOKENIZER = NoPrompts(Reason.NO_TOKENIZER, "it cannot be had")


def raw_body(**fields: Any) -> bytes:
    return json.dumps({"token_ids": [7, 8, 9], "sampling_params": {}, **fields}).encode()


def parsed(**fields: Any) -> GenerateRequest:
    return parse_generate(raw_body(**fields))


def sampled(**params: Any) -> GenerateRequest:
    return parsed(sampling_params=params)


async def tokenized(body: GenerateRequest, *, context: int | None = None) -> Tokenized:
    model = ServedModel("m", NO_TOKENIZER, contexts=ContextLengths(context, context))
    return await body.tokenized_by(model)


@pytest.mark.parametrize(
    ("given", "ids"),
    [([1, 2], [1, 2]), (["1", 2.0, True], [1, 2, 1]), ([0, 4294967295], [0, 4294967295])],
)
async def test_ids_are_the_prompt_without_a_tokenizer(given: list[Any], ids: list[int]) -> None:
    found = await tokenized(parsed(token_ids=given))

    assert [each.tolist() for each in found.token_ids] == [ids]
    assert found.reason is Reason.KV_AWARE


@pytest.mark.parametrize(
    "given",
    [[], [-1], [4294967296], [1.5], ["x"], [None], [[1]], "12", None, {}, [1] * 9000 + [-1]],
)
def test_what_is_no_list_of_token_ids_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="token_ids") as refused:
        parsed(token_ids=given)

    assert refused.value.param == "token_ids"


async def test_a_million_ids_are_too_many_for_a_model_whose_length_is_known() -> None:
    body = parsed(token_ids=[1] * 1_000_000)

    with pytest.raises(PromptTooLongError, match="contains 1000000 input tokens"):
        await tokenized(body, context=8192)


@pytest.mark.parametrize(
    ("given", "n", "limit"),
    [
        ({}, None, None),
        ({"n": 3, "max_tokens": 5}, 3, 5),
        ({"n": "2", "max_tokens": None}, 2, None),
    ],
)
def test_what_is_sampled_stands_in_its_parameters(
    given: dict[str, Any], n: int | None, limit: int | None
) -> None:
    body = sampled(**given)

    assert (body.n, body.answer_limit) == (n, limit)
    assert tells_its_reuse(body) is (n in (None, 1))


@pytest.mark.parametrize(
    ("params", "reads"),
    [
        ({}, True),
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprob_token_ids": [[1]]}, False),
        ({"skip_reading_prefix_cache": True}, False),
        ({"skip_reading_prefix_cache": False}, True),
    ],
)
def test_who_reads_no_cache_says_so(params: dict[str, Any], reads: bool) -> None:
    assert reads_cache(sampled(**params)) is reads


def test_log_probabilities_of_cached_tokens_are_refused() -> None:
    """The server of a vLLM 0.32 that was asked for them has ended."""
    with pytest.raises(InvalidRequestError, match="skip_reading_prefix_cache"):
        sampled(prompt_logprobs=1, skip_reading_prefix_cache=False)


def features(*offsets: object) -> dict[str, Any]:
    ranges = [{"offset": offset, "length": 2} for offset in offsets]
    return {"mm_hashes": {"image": ["a"] * len(ranges)}, "mm_placeholders": {"image": ranges}}


async def test_media_are_known_by_their_hashes_and_places_in_the_order_of_their_tokens() -> None:
    given = {
        "mm_hashes": {"image": ["a", "b"], "audio": ["c"]},
        "mm_placeholders": {
            "image": [{"offset": 2, "length": 1}, {"offset": "1", "length": 1}],
            "audio": [{"offset": 0, "length": 1}],
        },
    }

    found = await tokenized(parsed(features=given))

    assert found.token_ids[0].tolist() == [7, 8, 9]
    assert found.media == [("c", 0, 1), ("b", 1, 1), ("a", 2, 1)]
    assert found.reason is Reason.KV_AWARE


@pytest.mark.parametrize(
    "fields",
    [
        {"features": features("x")},
        {"features": features(-1)},
        {"features": features(2)},  # two tokens, behind the end
        {"features": {"mm_hashes": {}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}},
        {
            "features": {
                "mm_hashes": {"image": []},
                "mm_placeholders": features(0)["mm_placeholders"],
            }
        },
        {"features": {"mm_placeholders": 1}},
        {"features": {}},
        {"content_parts": [{"type": "image_url", "url": "https://a/b.png"}]},
    ],
)
async def test_a_prompt_of_which_nothing_is_known_goes_by_load(fields: dict[str, Any]) -> None:
    with pytest.raises(RenderError) as failed:
        await tokenized(parsed(**fields))

    assert failed.value.reason is Reason.MEDIA


def test_a_shape_is_asked_for_among_the_parameters() -> None:
    asked = {"structured_outputs": {"json": {"type": "object"}}}

    assert shape_fields(sampled(max_tokens=2)) == {}
    assert shape_fields(sampled(**asked)) == {"sampling_params": asked}


def test_it_stays_as_it_is_where_texts_become_ids() -> None:
    assert why_text(parsed()) == "is token ids already"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"sampling_params": {"max_tokens": 1}}, "wants one token"),
        ({"sampling_params": {"n": 2}}, "wants several answers"),
        ({"sampling_params": {"prompt_logprobs": 1}}, "wants its prompt computed"),
        ({"kv_transfer_params": {"a": 1}}, "says itself what is transferred"),
    ],
)
def test_another_engine_may_compute_its_prompt(fields: dict[str, Any], why: str | None) -> None:
    assert why_one_leg(parsed(**fields)) == why


def test_its_prefill_leg_makes_one_token() -> None:
    raw = raw_body(sampling_params={"max_tokens": 50, "n": 1}, stream=True)

    leg = prefill_body(raw, parse_generate(raw), b'{"do_remote_decode":true}')

    assert leg is not None
    fields = json.loads(leg)
    assert fields["sampling_params"] == {"max_tokens": 1, "detokenize": False}
    assert (fields["stream"], fields["token_ids"]) == (False, [7, 8, 9])
    assert fields["kv_transfer_params"] == {"do_remote_decode": True}


def test_a_tenants_salt_is_its_own() -> None:
    salted = with_cache_salt(raw_body(), lambda _: "tenant")

    assert salted is not None
    assert parse_generate(salted).cache_salt == "tenant"
