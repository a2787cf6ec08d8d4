"""Two endpoints compared, as the command does it, against small servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.tests.loading.made import session
from bench.tests.loading.servers import Answer, Recording, streamed, whole
from bench.tests.loading.test_run import SHORT, beside, words
from click.testing import CliRunner, Result

from inferway_bench.cli import bench
from inferway_bench.loading.compare import COMPARE, Address, ComparePlan, part_of_trace
from inferway_bench.loading.generated import Session, Turn, tagged
from inferway_bench.plotting import drawn
from inferway_bench.processes import BenchError
from inferway_bench.rows import load_run

QUICK = [*SHORT, "--minutes", "0.03", "--rate", "200", "--users", "2"]
UNCACHED = {
    "prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0},
}  # fmt: skip


def compare(a: Answer, b: Answer, *arguments: str, engine: Answer | None = None) -> Result:
    with ExitStack() as stack:
        urls = [stack.enter_context(beside(one)) for one in (a, b)]
        engines = [] if engine is None else ["--engine", stack.enter_context(beside(engine))]
        return CliRunner().invoke(bench, ["compare", *urls, *QUICK, *engines, *arguments])


class Engine:
    """Counts prompt tokens, of which half were cached, and resets; `has_reset`: development
    mode."""

    def __init__(self, *, has_reset: bool = True) -> None:
        self.resets = 0
        self._has_reset = has_reset
        self._tokens = 0

    async def __call__(self, path: str, _: dict[str, str], __: bytes) -> AsyncIterator[bytes]:
        if path == "/reset_prefix_cache":
            self.resets += self._has_reset
            yield whole({}, "200 OK" if self._has_reset else "404 Not Found")
            return
        self._tokens += 100
        lines = [
            'vllm:num_requests_running{engine="0"} 0.0',
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self._tokens}.0',
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self._tokens / 2}',
        ]
        body = "\n".join(lines).encode() + b"\n"
        yield b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class Answering:
    """Answers /v1/models with `models`, and each chat with the pieces."""

    def __init__(self, pieces: list[bytes], models: tuple[str, ...] = ("served",)) -> None:
        self._pieces, self._models = pieces, models

    async def __call__(self, _: str, __: dict[str, str], body: bytes) -> AsyncIterator[bytes]:
        data = [{"id": name} for name in self._models]
        for piece in self._pieces if body else [whole({"data": data})]:
            yield piece


def in_one_piece() -> list[bytes]:
    return [whole({"choices": [{"message": {"content": "a b c"}}], "usage": UNCACHED})]


def test_the_file_has_pairs_and_a_verdict_and_nothing_that_is_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "s3cret")
    a, b, file = (
        Recording("zebra", "emu"),
        Recording("zebra", "emu", usage=UNCACHED),
        tmp_path / "shared.json",
    )

    result = compare(
        a, b, "--api-key-env", "THE_KEY", "--header", "X-Team: blue", "--save", str(file),
        "--name", "ours 0.1", "--name", "theirs 0.2",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    said = "theirs 0.2 is worse than ours 0.1"
    assert said in words(result.output)
    assert "share of cached prompt tokens 75 points lower (75 to 75)" in words(result.output)
    run = load_run(file)
    assert len(run.select("blocks", endpoint="ours 0.1")) == 10
    assert {h["authorization"] for h in (*a.headers, *b.headers)} == {"Bearer s3cret"}
    asked = a.bodies[-1]["messages"][-1]["content"]
    for secret in ("s3cret", "blue", "127.0.0.1", "zebra", asked):
        assert secret not in file.read_text()


def test_both_get_the_same_lengths_and_no_words_of_another_block() -> None:
    a, b = Recording(), Recording()

    result = compare(a, b, "--no-ignore-eos")

    assert result.exit_code == 0, result.output
    texts = [body["messages"][0]["content"] for body in (*a.bodies, *b.bodies)]
    firsts = [[body["messages"][0]["content"].split() for body in one.bodies] for one in (a, b)]
    assert {len(found) for found in firsts[0][1:]} == {len(found) for found in firsts[1][1:]}
    systems = {text for text in texts if len(text.split()) == 8}
    assert len(systems) == 2 * (10 + 1)  # a block has one, and so has a warm-up


def test_each_is_sent_the_same_load_in_another_order_of_blocks() -> None:
    order: list[str] = []

    def noting(name: str) -> Recording:
        async def note(body: dict[str, Any]) -> None:
            system = body["messages"][0]["content"]
            if not order or order[-1] != f"{name} {system}":
                order.append(f"{name} {system}")

        return Recording(before=note)

    compare(noting("A"), noting("B"), "--sessions", "1")

    sides = [entry[0] for entry in dict.fromkeys(order)][-20:]
    pairs = {tuple(sides[i : i + 2]) for i in range(0, 20, 2)}
    assert pairs == {("A", "B"), ("B", "A")}


def test_engines_are_reset_before_each_block_and_their_counters_are_the_cached_share(
    tmp_path: Path,
) -> None:
    engine, file = Engine(), tmp_path / "run.json"

    result = compare(Recording(), Recording(), "--save", str(file), engine=engine)

    assert result.exit_code == 0, result.output
    assert engine.resets == 2 * (10 + 1)
    assert "Caches were reset before each block" in words(result.output)
    assert {row.values["cached, %"] for row in load_run(file).select("blocks")} == {50.0}


def test_an_engine_that_has_no_reset_is_said() -> None:
    result = compare(Recording(), Recording(), engine=Engine(has_reset=False))

    assert result.exit_code == 0, result.output
    assert "an engine has no /reset_prefix_cache" in words(result.output)


def test_the_rate_is_found_where_none_is_given(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with beside(Recording()) as url:
        arguments = ["--minutes", "0.03", "--users", "4", "--save", str(file)]
        result = CliRunner().invoke(bench, ["compare", url, url, *SHORT, *arguments])

    assert result.exit_code == 0, result.output
    rate = load_run(file).facts["rate"]
    assert isinstance(rate, float)
    assert rate > 100


def test_the_picture_has_the_differences_and_the_pairs(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    compare(Recording(), Recording(), "--save", str(file))

    assert COMPARE.chart is not None
    [row] = drawn(load_run(file), COMPARE.chart, "compare").rows

    assert [panel.y.partition(",")[0] for panel in row] == [
        "difference", "time to first token", "time between tokens", "prompt tokens from a cache",
    ]  # fmt: skip
    assert [line.label for line in row[1].lines] == ["A", "B"]


BUSY = Answering([whole({"error": "slow down"}, "429 Too Many Requests")])


@pytest.mark.parametrize(
    ("b", "arguments", "error"),
    [
        (BUSY, [], "1 requests was answered: status 429: {\"error\": \"slow down\"}; fix: a lower"),
        (Answering(in_one_piece()), [], "B: an answer of 3 tokens came in one piece"),
        (
            Answering(streamed("a", "b"), ("other",)), [],
            "no model is served by both: A has served, B has other; fix: serve one name by both",
        ),
        (
            Answering([whole({"error": "no"}, "401 Unauthorized")]), [],
            "fix: --api-key-env NAME",
        ),
        (Recording(), ["--rate", "1"], "1 requests a second are fewer than 8 in a block"),
        (Recording(), ["--name", "one"], "--name is given 1 times; allowed: 0 or 2"),
        (Recording(), ["--name", "x", "--name", "x"], "fix: two different names"),
        (
            Recording(), ["--engine", "http://127.0.0.1:1"],
            "--engine http://127.0.0.1:1: no counters:",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_an_error_with_its_place(
    b: Answer, arguments: list[str], error: str
) -> None:
    result = compare(Recording(), b, *arguments)

    assert result.exit_code != 0
    assert error in words(result.output)


def test_failures_beside_answers_are_said() -> None:
    count = 0

    async def failing(path: str, headers: dict[str, str], body: bytes) -> AsyncIterator[bytes]:
        nonlocal count
        count += bool(body)
        answer = BUSY if body and count > 40 and count % 4 == 0 else Recording()
        async for piece in answer(path, headers, body):
            yield piece

    result = compare(Recording(), failing)

    assert "requests failed** (status 429: " in words(result.output)
    assert "slow down" not in result.output


@pytest.mark.parametrize(
    ("minutes", "pairs", "seconds"), [(0.5, 10, 1.36), (10.0, 16, 17.6), (60.0, 40, 43.9)]
)
def test_longer_runs_have_more_and_longer_blocks(
    minutes: float, pairs: int, seconds: float
) -> None:
    plan = ComparePlan(url_a=Address("a"), url_b=Address("b"), minutes=minutes)

    assert plan.num_pairs == pairs
    assert plan.block_seconds == pytest.approx(seconds, abs=0.05)


def test_each_pair_has_the_next_part_of_a_trace_and_the_last_is_followed_by_the_first() -> None:
    def trace() -> Iterator[Session]:
        return (session("turn", at=(float(at),), number=at) for at in range(5))

    parts = [part_of_trace(trace(), number, 2.0) for number in range(3)]

    assert [[one.number for one in part] for part in parts] == [[0, 1], [2, 3], [0, 1]]
    assert [[one.at for one in part] for part in parts] == [[(0.0,), (1.0,)]] * 3


@pytest.mark.parametrize(
    ("turn", "body"),
    [
        (Turn(fields={"prompt": "p"}), {"prompt": "tag p"}),
        (
            Turn(fields={"messages": [{"role": "user", "content": "hi"}]}),
            {"messages": [{"role": "user", "content": "tag hi"}]},
        ),
    ],
)
def test_a_body_of_a_file_begins_with_the_blocks_word(turn: Turn, body: dict[str, Any]) -> None:
    assert tagged(Session(0, [turn]), "tag").turns[0].fields == body
    assert tagged(Session(0, [turn]), "").turns[0].fields == turn.fields


def test_a_conversation_of_a_file_begins_with_the_blocks_word() -> None:
    first, second = tagged(session("one", "two"), "tag").turns

    assert (first.messages[0]["content"], second.messages[0]["content"]) == ("tag one", "two")


def test_a_prompt_of_token_ids_cannot_have_a_word_of_its_own() -> None:
    with pytest.raises(BenchError, match=r"session 1 .* begins with no text"):
        tagged(Session(0, [Turn(fields={"prompt": [1, 2]})]), "tag")


def test_json_lines_say_what_ran() -> None:
    result = compare(Recording(), Recording(), "--json")

    head = json.loads(result.stdout.splitlines()[0])
    assert head["command"].count("http") == 0
    assert (head["plan"]["url_a"], head["facts"]["a"]) == ("…", "A")
