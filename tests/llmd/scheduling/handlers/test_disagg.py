"""Disaggregated serving."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request, target

from inferway.errors import ConfigError, NoEndpointError
from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.handlers.deciders import Always, Multimodal, PrefixBased


class Rows:
    """A profile that chooses these rows."""

    def __init__(self, *rows: int) -> None:
        self.rows = rows

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        if not self.rows:
            raise NoEndpointError("none left")
        return SchedulingResult(tuple(target(candidates, row) for row in self.rows))


IMAGE = request(
    body=ChatRequest(
        model="m",
        messages=[
            {"role": "user", "content": [{"type": "text"}, {"type": "image_url", "image_url": {}}]}
        ],
    )
)
TABLE = candidates(6)
DECIDERS = {"always": Always(), "media": Multimodal()}


def handler(kind: str = "disagg-profile-handler", /, **parameters: Any) -> ProfileHandler:
    return built(
        kind, {"decode": Rows(0, 1), "prefill": Rows(2, 3), "encode": Rows(4, 5)}, parameters
    )


def built(
    kind: str, profiles: dict[str, ProfileHandler], parameters: dict[str, Any]
) -> ProfileHandler:
    made = TYPES[kind]
    assert made.is_handler
    building = Building(DECIDERS, profiles)
    chooser: Any = made.build(msgspec.convert(parameters, made.parameters), building)
    return chooser  # type: ignore[no-any-return]


BOTH = {"deciders": {"prefill": "always", "encode": "media"}}


def prefillers(choice: SchedulingResult) -> list[str]:
    return [each.endpoint.engine for each in choice.prefill]


def test_the_engine_that_decodes_is_told_who_prefills() -> None:
    choice = handler(deciders={"prefill": "always"}).choose(request(), TABLE)

    assert [t.endpoint.engine for t in choice.targets] == ["e0", "e1"]
    assert prefillers(choice)[:1] == ["e2"]
    assert choice.others["prefill"].endpoint.engine == "e2"
    assert choice.profile == "decode"


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_a_prompt_that_is_read_from_no_cache_is_not_prefilled_elsewhere(order: str) -> None:
    deciders = {"prefill": "always"} if order == "decode-first" else {}
    asking = request(body=ChatRequest(model="m", messages=[], prompt_logprobs=1))

    choice = handler(stageOrder=order, deciders=deciders).choose(asking, TABLE)

    assert (choice.headers, choice.others, choice.prefill) == ((), {}, ())


def test_and_who_encodes() -> None:
    choice = handler(**BOTH).choose(IMAGE, TABLE)

    assert choice.headers == ((b"x-encoder-hosts-ports", b"10.0.0.4:8000,10.0.0.5:8000"),)
    assert prefillers(choice)[:1] == ["e2"]


def test_a_request_without_media_is_not_encoded_apart() -> None:
    assert set(handler(**BOTH).choose(request(), TABLE).others) == {"prefill"}


def test_without_a_decider_all_is_done_where_it_is_decoded() -> None:
    choice = handler().choose(IMAGE, TABLE)

    assert (choice.headers, choice.others, choice.prefill) == ((), {}, ())


def test_a_stage_without_an_endpoint_is_left_out() -> None:
    profiles: dict[str, ProfileHandler] = {"decode": Rows(0), "prefill": Rows()}
    parameters = {"deciders": {"prefill": "always"}}

    choice = built("disagg-profile-handler", profiles, parameters).choose(request(), TABLE)

    assert (choice.headers, choice.prefill) == ((), ())


def test_without_an_endpoint_that_decodes_there_is_none() -> None:
    profiles: dict[str, ProfileHandler] = {"decode": Rows(), "prefill": Rows(1)}

    with pytest.raises(NoEndpointError, match="none left"):
        built("disagg-profile-handler", profiles, {}).choose(request(), TABLE)


def test_prefill_first_prefills_always() -> None:
    choice = handler(stageOrder="prefill-first").choose(request(), TABLE)

    assert prefillers(choice)[:1] == ["e2"]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("disagg-profile-handler", {"deciderPluginName": "always"}),
        ("disagg-profile-handler", {"prefillDeciderPluginName": "always"}),
    ],
)
def test_older_names_say_the_same(kind: str, parameters: dict[str, Any]) -> None:
    choice = handler(kind, **parameters).choose(request(), TABLE)

    assert prefillers(choice)[:1] == ["e2"]


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        (
            "disagg-profile-handler",
            {"deciders": {"prefill": "gone"}},
            "deciders.prefill: 'gone' is no decider among the plugins; known: always, media",
        ),
        (
            "disagg-profile-handler",
            {"profiles": {"decode": "d"}},
            "profiles.decode: 'd' is no profile; known: decode, encode, prefill",
        ),
        (
            "disagg-profile-handler",
            {"profiles": {"prefill": "p"}, "deciders": {"prefill": "always"}},
            "profiles.prefill: 'p' is no profile",
        ),
        (
            "disagg-profile-handler",
            {"stageOrder": "prefill-first", "deciders": {"prefill": "always"}},
            "deciders.prefill: 'always': prefill-first has none",
        ),
        (
            "disagg-profile-handler",
            {"decodeProfile": "decode", "deciders": {"prefill": "always"}},
            "profiles and deciders stand beside their older names",
        ),
    ],
)
def test_what_cannot_hold_is_named(kind: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        handler(kind, **parameters)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("uncached", "least", "worth"),
    [(200, 0, True), (201, 0, False), (200, 1000, True), (200, 1001, False), (0, 0, False)],
)
def test_prefill_apart_is_worth_it_from_so_many_uncached_tokens_on(
    uncached: int, least: int, worth: bool
) -> None:
    # 1000 tokens, of which 50 blocks of 16 are held; what tier they lie in does not matter
    table = candidates(2, matched_blocks=[0, 50], weighted_matched_blocks=[0, 25], prompt_blocks=62)
    decider = PrefixBased(uncached, least)

    assert decider.is_worth_it(request(tokens=1000), table, target(table, 1)) is worth


@pytest.mark.parametrize(
    ("content", "media"),
    [
        ("an image_url in words", False),
        ([{"type": "text", "text": "hi"}], False),
        ([{"type": "input_audio"}], True),
        ([{"type": "video_url"}], True),
        (None, False),
    ],
)
def test_media_are_parts_of_messages(content: Any, media: bool) -> None:
    body = ChatRequest(model="m", messages=[{"role": "user", "content": content}])

    assert Multimodal().is_worth_it(request(body=body), TABLE, None) is media
