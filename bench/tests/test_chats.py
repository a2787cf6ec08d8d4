"""Real conversations, joined, cut and dealt anew."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest

from inferway_bench.chats import (
    Turns,
    chat_of,
    cut_to,
    default_data_dir,
    load_conversations,
    reshuffled,
    sizes,
)
from inferway_bench.processes import BenchError
from inferway_sim.prepare import prepare_smollm2


def count_words(text: str) -> int:
    return len(text.split())


def test_all_conversations_of_the_data_are_read() -> None:
    conversations = load_conversations(default_data_dir() / "chat")

    assert len(conversations) > 3_000
    roles = Counter(message["role"] for chat in conversations for message in chat)
    assert set(roles) == {"user", "assistant"}


def test_what_tools_say_and_empty_turns_are_left_out(tmp_path: Path) -> None:
    lines = (
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"},'
        b' {"role": "assistant", "content": null}, {"role": "assistant", "content": "c"}]}\n'
    )
    (tmp_path / "some.jsonl.gz").write_bytes(gzip.compress(lines))

    assert load_conversations(tmp_path) == [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]
    ]


def test_a_directory_without_conversations_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="fix: --data DIR"):
        load_conversations(tmp_path)


def test_turns_go_on_for_ever_and_count_how_often_all_were_used() -> None:
    turns = Turns([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]], seed=1)

    seen = [next(turns)["content"] for _ in range(5)]

    assert sorted(seen[:2]) == ["a", "b"]
    assert seen == (seen[:2] * 3)[:5]
    assert turns.num_rounds == 2


def test_the_order_depends_on_the_seed_only() -> None:
    conversations = [[{"role": "user", "content": str(i)}] for i in range(20)]

    def first(seed: int) -> list[str]:
        turns = Turns(conversations, seed)
        return [next(turns)["content"] for _ in range(20)]

    assert first(1) == first(1) != first(2)


def test_a_chat_has_the_length_that_was_asked_for_and_ends_with_the_user() -> None:
    turns = Turns([[{"role": "assistant", "content": "one two three four"}]], seed=0)

    chat = chat_of(turns, 20, count_words, num_around=2)

    assert [m["content"] for m in chat] == ["one two three four"] * 3
    assert [m["role"] for m in chat] == ["assistant", "assistant", "user"]


def test_the_last_turn_of_a_chat_is_cut() -> None:
    turns = Turns([[{"role": "user", "content": "one two three four"}]], seed=0)

    chat = chat_of(turns, 10, count_words)

    assert [m["content"] for m in chat] == ["one two three four", "one two three four", "one two "]


def test_a_rendered_chat_has_about_as_many_tokens_as_asked() -> None:
    model = sizes(str(prepare_smollm2()))
    turns = Turns(load_conversations(default_data_dir() / "chat"), seed=0)

    chat = chat_of(turns, 700, model.count, model.around_turn)

    assert 690 <= sum(model.count(m["content"]) + model.around_turn for m in chat) <= 700


def test_a_cut_is_the_longest_beginning_that_fits() -> None:
    assert cut_to("one two three", 2, count_words) == "one two "
    assert cut_to("one two three", 9, count_words) == "one two three"
    assert cut_to("one", 0, count_words) == "o"


def test_a_chat_dealt_anew_has_the_same_roles_and_words_but_no_turn_in_common() -> None:
    turns = Turns(load_conversations(default_data_dir() / "chat"), seed=0)
    chat = chat_of(turns, 3_000, count_words)

    dealt = reshuffled(chat, seed=1)

    def words(messages: list[dict[str, str]]) -> Counter[str]:
        return Counter(w for m in messages for w in re.findall(r"\w+", m["content"]))

    assert [m["role"] for m in dealt] == [m["role"] for m in chat]
    assert not {m["content"] for m in dealt} & {m["content"] for m in chat}
    assert words(dealt) == words(chat)
