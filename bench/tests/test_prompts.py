"""`inferway bench prompts`: real conversations, joined, cut and dealt anew; and a miniature run.

In the miniature the test's own interpreter has transformers; a venv of its own takes minutes.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from bench.tests.runs import a_run, unseen
from click.testing import CliRunner

from inferway_bench.cli import bench
from inferway_bench.flags import default_data_dir
from inferway_bench.processes import BenchError
from inferway_bench.prompts import (
    CHATS,
    MET,
    OURS,
    PROMPTS,
    THEIRS,
    Given,
    PromptsPlan,
    Turns,
    Workers,
    load_conversations,
    measure,
    reshuffled,
    row_pair,
)
from inferway_bench.rows import Findings
from inferway_sim.prepare import prepare_smollm2

HERE = Path(sys.executable)
MODEL = str(prepare_smollm2())
MINIATURE = PromptsPlan(
    repeats=2, fresh_processes=1, chat_tokens=400, growing_tokens=1_500, served_before=1
)


@pytest.fixture
def turns() -> Iterator[Turns]:
    with closing(Turns(load_conversations(default_data_dir() / "chat"), 0, MODEL)) as made:
        yield made


def test_all_conversations_of_the_data_are_read() -> None:
    conversations = load_conversations(default_data_dir() / "chat")

    assert len(conversations) > 3_000
    assert {message["role"] for chat in conversations for message in chat} == {"user", "assistant"}


def test_what_tools_say_and_empty_turns_are_left_out(tmp_path: Path) -> None:
    lines = (
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"},'
        b' {"role": "assistant", "content": null}, {"role": "assistant", "content": "c"}]}\n'
    )
    (tmp_path / "some.jsonl.gz").write_bytes(gzip.compress(lines))

    assert load_conversations(tmp_path) == [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]
    ]


def test_missing_data_ends_the_command_with_the_cure(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["prompts", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert "fix: --data DIR" in result.output


def test_turns_go_on_for_ever_in_an_order_that_the_seed_draws() -> None:
    conversations = [[{"role": "user", "content": str(i)}] for i in range(20)]

    def first(seed: int) -> list[str]:
        with closing(Turns(conversations, seed, MODEL)) as turns:
            return [turn["content"] for turn in islice(turns, 40)]

    assert first(1) == first(1) != first(2)
    assert first(1)[:20] == first(1)[20:]


def test_a_chat_has_about_the_length_that_was_asked_for_and_ends_with_the_user(
    turns: Turns,
) -> None:
    chat = turns.chat(20)

    assert chat[-1]["role"] == "user"
    first, second = islice(turns.growing(700), 2)
    assert [m["role"] for m in second[len(first) :]] == ["assistant", "user"]


def test_a_chat_dealt_anew_has_the_same_roles_and_words_but_no_turn_in_common(
    turns: Turns,
) -> None:
    chat = turns.chat(3_000)

    dealt = reshuffled(chat, seed=1)

    def words(messages: list[dict[str, str]]) -> Counter[str]:
        return Counter(w for m in messages for w in re.findall(r"\w+", m["content"]))

    assert [m["role"] for m in dealt] == [m["role"] for m in chat]
    assert not {m["content"] for m in dealt} & {m["content"] for m in chat}
    assert words(dealt) == words(chat)


# both systems


def answers(digest: str, *times: tuple[float, float]) -> list[Mapping[str, Any]]:
    return [{"wall": wall, "cpu": cpu, "tokens": 8, "digest": digest} for wall, cpu in times]


def given(digest: str = "same") -> Given:
    ours = answers("same", (20e3, 10e3), (22e3, 12e3))
    return {OURS: ours, THEIRS: answers(digest, (900e3, 200e3), (900e3, 240e3))}


def test_the_table_has_both_sides_and_the_ratio_of_cpu_times() -> None:
    rows = list(row_pair(8, MET, given()))

    text = PROMPTS.markdown(a_run("prompts", Findings(rows=rows), plan={"served_before": 4}))

    assert (
        f"| 8 | {MET} | 8 | 21.0 (20.5 to 21.5) | 11.0 | 900 (900 to 900) | 220 | 20.00 (" in text
    )
    assert "in a process that served 4 others" in text


def test_systems_that_find_other_tokens_are_no_comparison() -> None:
    with pytest.raises(BenchError, match="transformers finds other tokens"):
        list(row_pair(8, MET, given("another")))


def test_a_workers_error_says_which_system_and_what_was_asked() -> None:
    with (
        pytest.raises(BenchError, match=r"(?s)Inferway: its worker ended with 1: .*RenderError"),
        Workers(HERE, unseen).prepared(OURS, "/nowhere"),
    ):
        pass


@pytest.mark.slow
def test_both_systems_find_the_same_ids() -> None:
    chat = [{"role": "user", "content": "Grüße, 你好!  Twice  two."}]
    with Workers(HERE, unseen).both(MODEL) as both:
        ours, theirs = (both[system].ask({"chat": chat}) for system in (OURS, THEIRS))

    assert ours["tokens"] == theirs["tokens"] > 10
    assert ours["digest"] == theirs["digest"]
    assert ours["wall"] > 0


@pytest.mark.slow
def test_each_thing_is_measured_as_often_as_planned_with_chats_of_the_length_that_is_said() -> None:
    found = measure(MINIATURE, unseen, HERE)

    assert {row.table for row in found.rows} == {CHATS}
    assert [(row.keys["chat"], row.keys["system"]) for row in found.rows[:4]] == [
        ("first in the process", OURS),
        ("first in the process", THEIRS),
        (MET, OURS),
        (MET, THEIRS),
    ]
    assert [len(row.repeats("time")) for row in found.rows[:4]] == [1, 1, 2, 2]
    assert all(min(row.repeats("CPU")) > 0 for row in found.rows)
    tokens = [row.median("prompt") for row in found.rows if row.is_ours]
    assert all(350 <= n <= 800 for n in tokens[:4])
    assert 1_300 <= tokens[4] <= 2_700
