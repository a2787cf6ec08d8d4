"""What engines have rendered is used again where, and as far as, it is the same."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.errors import RenderError
from inferway.model import Reason, TokenIds
from inferway.openai_api.requests import ChatRequest, CompletionRequest
from inferway.prompts.remote_render_cache import (
    BORDER_SECONDS,
    MARGIN,
    OVERHEAD_BYTES,
    QUARTER_SECONDS,
    REMEMBERED,
    RemoteRenderCache,
    RenderKey,
    as_ids,
    asked_for,
    may_be_kept,
)

NOON = 1_763_726_400.0
SYSTEM = {"role": "system", "content": "Be brief."}
TURNS = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Three?"},
]


def chat(*messages: dict[str, Any], now: float = NOON, **fields: Any) -> RenderKey:
    return asked_for(ChatRequest(model="m", messages=list(messages), **fields), now)


def completion(prompt: Any = "Hi", **fields: Any) -> RenderKey:
    return asked_for(CompletionRequest(model="m", prompt=prompt, **fields), NOON)


def ids(*parts: int | range) -> TokenIds:
    return as_ids([id for part in parts for id in (part if isinstance(part, range) else [part])])


def test_a_chat_has_a_digest_for_each_of_its_earlier_turns() -> None:
    longer, shorter = chat(*TURNS), chat(*TURNS[:3])

    assert longer.digests[2] == shorter.key
    assert len(set(longer.digests)) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "none"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"response_format": {"type": "json_object"}},
        {"documents": [{"text": "x"}]},
        {"chat_template": "x"},
        {"add_special_tokens": True},
        {"truncate_prompt_tokens": 9},
        {"cache_salt": "tenant"},
        {"now": NOON + QUARTER_SECONDS},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_all_that_shapes_a_prompt_or_sets_tenants_apart_is_in_the_digest(
    fields: dict[str, Any],
) -> None:
    assert not set(chat(*TURNS).digests) & set(chat(*TURNS, **fields).digests)


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"a": float("nan")}},
        {"tools": [{"type": "function", "function": {"name": "f", "x": float("-inf")}}]},
        {"documents": [{"text": "\ud800"}]},
    ],
)
def test_no_engine_is_asked_for_what_it_would_read_differently(fields: dict[str, Any]) -> None:
    with pytest.raises(RenderError, match="standard JSON has no words for") as e:
        chat(SYSTEM, **fields)

    assert e.value.reason == Reason.REMOTE_FAILED


def test_text_with_the_word_null_is_asked_for() -> None:
    assert chat({"role": "user", "content": "null", "name": None}).raw("m").count(b"null") == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"stream": True},
        {"tools": None},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"now": NOON + QUARTER_SECONDS - 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_shapes_no_prompt_is_not(fields: dict[str, Any]) -> None:
    assert chat(*TURNS).key == chat(*TURNS, **fields).key


def test_the_answers_length_counts_where_it_decides_how_much_is_kept() -> None:
    cut = {"truncate_prompt_tokens": -1}

    assert chat(*TURNS, **cut, max_tokens=5).key != chat(*TURNS, **cut).key


def test_nothing_can_be_moved_from_one_message_to_the_next() -> None:
    a = chat({"role": "user", "content": "x"}, {"role": "user", "content": "y"})
    b = chat({"role": "user", "content": 'x"},{"role":"user","content":"y'})

    assert a.key != b.key
    assert completion(["a", "b"]).key != completion(["a,b"]).key
    assert completion("Hi").key != completion(["Hi"]).key


def test_the_body_is_sent_with_what_shapes_the_prompt_under_the_engines_own_name() -> None:
    asked = chat(SYSTEM, *TURNS[:1], reasoning_effort="low", cache_salt="s", max_tokens=3)

    assert msgspec.json.decode(asked.raw("theirs")) == {
        "model": "theirs",
        "reasoning_effort": "low",
        "messages": [SYSTEM, TURNS[0]],
    }
    assert msgspec.json.decode(completion("Hi").raw("m")) == {"model": "m", "prompt": "Hi"}


@pytest.mark.parametrize(
    ("into", "kept"),
    [
        (0.0, False),
        (BORDER_SECONDS - 0.1, False),
        (BORDER_SECONDS, True),
        (450.0, True),
        (QUARTER_SECONDS - BORDER_SECONDS, True),
        (QUARTER_SECONDS - 1, False),
    ],
)
def test_what_was_asked_for_close_to_a_quarter_is_not_kept(into: float, kept: bool) -> None:
    assert may_be_kept(NOON + into) is kept


def test_the_same_request_gets_what_was_rendered() -> None:
    known = RemoteRenderCache(10_000)
    known.put(chat(*TURNS), [ids(1, 2, 3)])

    found = known.get(chat(*TURNS))

    assert found is not None
    assert found[0].tolist() == [1, 2, 3]
    assert known.get(chat(*TURNS[:3])) is None


def test_what_may_not_be_kept_is_not() -> None:
    known = RemoteRenderCache(10_000)
    known.put(chat(*TURNS), [ids(1)], keep=False)

    assert known.get(chat(*TURNS)) is None
    assert known.num_bytes == 0


def learned(deficit: int, known: RemoteRenderCache | None = None) -> RemoteRenderCache:
    """Has seen one chat grow by a turn whose start differed in its last `deficit` tokens."""
    known = known or RemoteRenderCache(1 << 20)
    first, second = chat(SYSTEM, TURNS[0]), chat(SYSTEM, *TURNS[:3])
    known.put(first, [ids(range(100))])
    known.put(second, [ids(range(100 - deficit), range(500, 600))])
    return known


def test_nothing_is_trusted_before_a_chat_was_seen_to_grow() -> None:
    known = RemoteRenderCache(10_000)
    known.put(chat(*TURNS[:1]), [ids(range(100))])

    assert known.start_of(chat(*TURNS[:3])) is None


@pytest.mark.parametrize("deficit", [0, 3, 40])
def test_an_earlier_turn_is_trusted_as_far_as_others_were_right_less_a_margin(deficit: int) -> None:
    known = learned(deficit)
    known.put(chat(*TURNS[:1]), [ids(range(1000, 1100))])

    start = known.start_of(chat(*TURNS[:3]))

    assert start is not None
    assert start.tolist() == list(range(1000, 1100 - deficit - MARGIN))


def test_the_worst_seen_counts_until_it_is_long_ago() -> None:
    known = learned(40)
    known.put(chat(*TURNS[:1]), [ids(range(1000, 1100))])

    def trusted() -> int:
        start = known.start_of(chat(*TURNS[:3]))
        return 0 if start is None else len(start)

    learned(0, known)
    assert trusted() == 100 - 40 - MARGIN

    for _ in range(REMEMBERED):
        learned(0, known)
    assert trusted() == 100 - MARGIN


def test_what_was_seen_of_one_kind_of_turn_says_nothing_of_another() -> None:
    known = learned(0)
    tool = {"role": "tool", "content": "21"}
    known.put(chat(*TURNS[:1], tool), [ids(range(100))])

    assert known.start_of(chat(*TURNS[:1], tool, *TURNS[1:3])) is None
    assert known.start_of(chat(*TURNS[:1], TURNS[1])) is None


def test_the_longest_trusted_start_is_taken_not_the_latest_turn() -> None:
    known = learned(0)
    tool, call = {"role": "tool", "content": "21"}, {"role": "assistant", "content": "c"}
    thoughts = chat(*TURNS[:1], call, tool)
    known.put(chat(*TURNS[:1]), [ids(range(80))])
    known.put(thoughts, [ids(range(100))])
    # after a tool's answer, all thoughts before it are dropped
    known.put(chat(*TURNS[:1], call, tool, TURNS[1], TURNS[2]), [ids(range(80), range(900, 999))])

    start = known.start_of(chat(*TURNS[:1], call, tool, TURNS[1], TURNS[4]))

    assert start is not None
    assert len(start) == 80 - MARGIN


def test_a_start_too_short_to_be_trusted_is_none() -> None:
    known = learned(5)
    known.put(chat(*TURNS[:1]), [ids(range(5 + MARGIN))])

    assert known.start_of(chat(*TURNS[:3])) is None


def test_a_prompt_whose_start_is_cut_off_has_no_known_start() -> None:
    known, cut = learned(0), {"truncate_prompt_tokens": 500}
    known.put(chat(*TURNS[:1], **cut), [ids(range(100))])

    assert known.start_of(chat(*TURNS[:3], **cut)) is None


def test_the_start_of_a_chat_that_goes_on_after_what_was_asked_for() -> None:
    known = learned(2)
    asked = chat(*TURNS[:1])
    known.put(asked, [ids(range(100))])

    start = known.start_of(asked, ["user", "assistant", "user"])

    assert start is not None
    assert len(start) == 100 - 2 - MARGIN
    assert known.start_of(asked, ["user"]) is None


def test_the_least_recently_used_is_forgotten_first_and_memory_stays_bounded() -> None:
    entry = OVERHEAD_BYTES + 4 * 100
    known = RemoteRenderCache(3 * entry)
    asked = [completion(str(i)) for i in range(5)]
    for each in asked[:3]:
        known.put(each, [ids(range(100))])
    known.get(asked[0])

    known.put(asked[3], [ids(range(100))])

    assert [known.get(each) is not None for each in asked[:4]] == [True, False, True, True]
    assert known.num_bytes == 3 * entry
    known.put(asked[4], [ids(range(10_000))])
    assert known.get(asked[4]) is None


def test_what_is_rendered_anew_is_counted_once() -> None:
    known = RemoteRenderCache(10_000)
    for _ in range(3):
        known.put(completion(), [ids(1, 2), ids(3)])

    assert known.num_bytes == OVERHEAD_BYTES + 3 * 4


def test_ids_are_shared_and_so_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        as_ids([1, 2])[0] = 3

    assert as_ids([2**32 - 1]).dtype == np.uint32


def test_roles_that_clients_make_up_are_of_one_kind() -> None:
    known = RemoteRenderCache(1 << 20)
    first, second = ({"role": f"role {i}", "content": str(i)} for i in range(2))
    known.put(chat(first), [ids(range(50))])
    known.put(chat(first, TURNS[0]), [ids(range(60))])
    known.put(chat(second), [ids(range(70))])

    assert known.start_of(chat(second, TURNS[0])) is not None
