"""Files of conversations and bodies."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from inferway_bench.flags import default_data_dir
from inferway_bench.loading.datasets import Dataset, dataset_file, read_dataset
from inferway_bench.processes import BenchError

INSTALLED = sorted((default_data_dir() / "chat").iterdir())
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u1"},
        {"role": "assistant", "content": "a1 " * 20},
        {"role": "user", "content": "u2"},
        {"role": "assistant", "content": "a2"},
    ]
}


def dataset(tmp_path: Path, *entries: Any) -> Dataset:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return read_dataset(path)


def said(turn: Any) -> list[str]:
    return [message["content"] for message in turn.messages]


def test_a_conversation_is_a_turn_for_each_answer(tmp_path: Path) -> None:
    [session] = dataset(tmp_path, CHAT).sessions

    assert [said(turn) for turn in session.turns] == [["s", "u1"], ["u2"]]
    assert [turn.answer for turn in session.turns] == ["a1 " * 20, "a2"]


def test_sharegpt_is_a_conversation_and_what_is_behind_its_last_answer_is_not_asked(
    tmp_path: Path,
) -> None:
    entry = {
        "id": "x",
        "conversations": [
            {"from": "human", "value": "u1"},
            {"from": "gpt", "value": "a1"},
            {"from": "human", "value": "u2"},
        ],
    }
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([entry]))

    [session] = read_dataset(path).sessions

    assert [said(turn) for turn in session.turns] == [["u1"]]
    assert session.turns[0].messages[0]["role"] == "user"


def test_calls_of_tools_and_their_results_are_said_again_as_they_were(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "content": "42", "tool_call_id": "1"}
    answer = {"role": "assistant", "content": "It is 42."}

    [session] = dataset(
        tmp_path,
        {"messages": [{"role": "user", "content": "u"}, call, result, answer], "tools": [{}]},
    ).sessions

    assert list(session.turns[0].messages[1:]) == [call, result]
    assert session.turns[0].fields == {"tools": [{}]}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "u"}], "temperature": 0.5},
        {"prompt": "p", "max_tokens": 4},
    ],
)
def test_a_body_is_sent_as_it_is_but_for_what_the_command_says(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    [session] = dataset(tmp_path, {**body, "model": "other", "stream": False}).sessions

    assert session.turns[0].fields == body


def test_a_line_of_a_batch_file_has_its_body_sent(tmp_path: Path) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "p"}}

    assert dataset(tmp_path, line).sessions[0].turns[0].fields == {"prompt": "p"}


def test_answers_are_as_long_as_drawn_or_about_as_long_as_they_were(tmp_path: Path) -> None:
    read = dataset(tmp_path, CHAT)

    drawn = read.shaped(1, (7, 7), given_answers=True, force_length=True).sessions[0]
    own = read.shaped(1, None, given_answers=False, force_length=False).sessions[0]

    assert [turn.fields for turn in drawn.turns] == [{"max_tokens": 7, "ignore_eos": True}] * 2
    assert [turn.fields for turn in own.turns] == [{"max_tokens": 15}, {"max_tokens": 1}]
    assert [turn.answer for turn in own.turns] == [None, None]


def test_each_stage_begins_elsewhere_and_all_come_before_any_comes_again(tmp_path: Path) -> None:
    read = dataset(tmp_path, *({"prompt": str(i)} for i in range(10)))

    def prompts(stage: int) -> list[str]:
        return [s.turns[0].fields["prompt"] for s in islice(read.endless(1, stage), 20)]

    assert sorted(prompts(0)[:10]) == [str(i) for i in range(10)]
    assert prompts(0)[10:] == prompts(0)[:10]
    assert prompts(1)[0] != prompts(0)[0]


@pytest.mark.parametrize("path", INSTALLED, ids=lambda path: path.name)
def test_the_installed_chats_are_conversations(path: Path) -> None:
    read = read_dataset(path)

    assert len(read.sessions) > 10
    assert all(turn.answer for session in read.sessions for turn in session.turns)


def test_installed_data_has_short_names() -> None:
    data = default_data_dir()

    assert dataset_file("mooncake").name == "mooncake_conversation_trace.jsonl.xz"
    assert dataset_file("mt_bench_101") == data / "chat" / "mt_bench_101.jsonl.xz"


def test_a_file_wins_over_installed_data_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mooncake").touch()

    assert dataset_file("mooncake") == Path("mooncake")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{oops", r"line 1: not JSON"),
        ("3", r"entry 1: expected a JSON object"),
        ('{"text": "x"}', r"entry 1: has none of `messages`.*\['text'\]"),
        ('{"messages": [{"content": "x"}]}', r"entry 1: `messages` holds what has no `role`"),
        ('{"conversations": [{"from": "alien"}]}', r"'alien' in `from`; allowed: .*human"),
        ("", r"nothing to send"),
    ],
)
def test_what_cannot_be_sent_is_an_error_with_its_place(
    tmp_path: Path, line: str, error: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(line + "\n")

    with pytest.raises(BenchError, match=error):
        read_dataset(path)


def test_a_gzipped_file_that_is_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "p"}' * 100)[:30])

    with pytest.raises(BenchError, match="cannot be read"):
        read_dataset(path)
