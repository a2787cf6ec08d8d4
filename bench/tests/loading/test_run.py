"""A whole run against a small server, as the command makes it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from bench.tests.loading.servers import Answer, Recording, serving, whole
from click.testing import CliRunner, Result

from inferway_bench.cli import bench
from inferway_bench.loading.client import Target
from inferway_bench.loading.plan import least_most, request_rates, user_counts
from inferway_bench.loading.run import LOAD, ask_model
from inferway_bench.machine import without_secrets
from inferway_bench.plotting import drawn
from inferway_bench.processes import BenchError
from inferway_bench.rows import load_run

SHORT = ["--systems", "1", "--system-tokens", "8", "--turns", "2", "--message-tokens", "4"]


@contextmanager
def beside(answer: Answer) -> Iterator[str]:
    """A server in a thread: the command has a loop of its own."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), []

    async def run() -> None:
        async with serving(answer) as url:
            urls.append(url)
            ready.set()
            await stop.wait()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert ready.wait(30)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def load(*arguments: str, answer: Answer | None = None) -> Result:
    with beside(answer or Recording()) as url:
        return CliRunner().invoke(bench, ["load", url, *SHORT, *arguments])


def words(text: str) -> str:
    """In one line: a terminal breaks them."""
    return " ".join(text.split())


def test_a_ladder_of_rates_is_measured_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "run.json"

    result = load("--rates", "200,400", "--requests", "40", "--save", str(file))

    assert result.exit_code == 0, result.output
    run = load_run(file)
    assert [(r.keys["load"], r.values["requests"], r.values["failed"]) for r in run.rows] == [
        ("200/s", 40, 0),
        ("400/s", 40, 0),
    ]
    assert run.facts["model"] == "served"
    assert run.rows[0].median("cached") == pytest.approx(0.75)


def test_the_tables_are_shown_whole_in_a_terminal_of_80_columns() -> None:
    result = load("--users", "2", "--requests", "20", "--slo-ttft", "30")

    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    assert "Goals: TTFT up to" in result.output


def test_json_lines_say_what_ran_and_then_each_load() -> None:
    result = load("--users", "1,2", "--requests", "6", "--json", "--seed", "5")

    head, *lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert (head["benchmark"], head["seeds"], len(lines)) == ("load", [5], 2)
    assert lines[0]["keys"] == {"load": "1 user"}


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    result = load("--users", "1", "--requests", "6", "--plot", str(tmp_path))

    assert result.exit_code == 0, result.output
    assert (tmp_path / "load.png").stat().st_size > 1000
    assert (tmp_path / "load.svg").exists()


def test_the_picture_has_three_panels_and_the_cached_share_where_it_is_known(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.json"
    load("--rates", "200", "--requests", "6", "--save", str(file))

    assert LOAD.chart is not None
    picture = drawn(load_run(file), LOAD.chart, "load")

    assert [panel.y.partition(",")[0] for panel in picture.rows[0]] == [
        "time to first token",
        "time between tokens",
        "tokens per second",
        "prompt tokens from a cache",
    ]


def test_a_run_is_told_as_a_document_too(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    load("--rates", "200", "--requests", "6", "--save", str(file))

    assert "Time to first token, ms" in LOAD.markdown(load_run(file))


def test_each_load_has_sessions_of_its_own_and_another_run_other_words() -> None:
    server = Recording()

    for _ in range(2):
        load("--users", "1,1", "--requests", "4", answer=server)

    asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert len(asked) == len(set(asked)) == 16


def test_the_same_text_comes_again_if_that_is_asked_for() -> None:
    server = Recording()

    for _ in range(2):
        load("--users", "1", "--requests", "4", "--same-text", answer=server)

    assert server.bodies[:4] == server.bodies[4:]


def test_a_trace_is_sent_at_its_own_times_faster(tmp_path: Path) -> None:
    server, path = Recording(), tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": t, "input_length": 600, "output_length": 3, "hash_ids": [1, 2 + t]}
        for t in (0, 3000, 6000)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    result = load(
        "--trace-times", "--speed", "100", "--dataset", str(path), "--requests", "3",
        answer=server,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    asked = [body["messages"][0]["content"].split() for body in server.bodies]
    assert [len(words) for words in asked] == [600] * 3
    assert asked[0][:512] == asked[1][:512]


def test_an_installed_trace_is_sent_by_its_short_name() -> None:
    server = Recording()

    result = load("--rates", "200", "--dataset", "azure", "--requests", "3", answer=server)

    assert result.exit_code == 0, result.output
    asked = [body["messages"][0]["content"].split() for body in server.bodies]
    assert sorted(len(words) for words in asked) == [374, 396, 879]


def test_a_file_that_is_too_short_is_sent_again_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bodies.jsonl"
    path.write_text('{"prompt": "p"}\n{"prompt": "q"}\n')

    result = load("--rates", "200", "--requests", "5", "--dataset", str(path))

    assert "what was sent before may be cached" in words(result.output)


def test_a_key_comes_from_the_environment_and_headers_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Recording()
    monkeypatch.setenv("THE_KEY", "s3cret")

    result = load(
        "--users", "1", "--requests", "2", "--api-key-env", "THE_KEY", "--header", "X-Team: blue",
        "--json", answer=server,
    )  # fmt: skip

    assert '"X-Team: …"' in result.stdout
    assert "blue" not in result.stdout
    assert "s3cret" not in result.stdout

    assert {h["authorization"] for h in server.headers} == {"Bearer s3cret"}
    assert {h["x-team"] for h in server.headers} == {"blue"}
    shown = without_secrets(["--header", "X-Key: abc", "--header=X-Key: abc", "--seed", "1"])
    assert list(shown) == ["--header", "X-Key: …", "--header=X-Key: …", "--seed", "1"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "expected one of --rates, --users and --trace-times, not none"),
        (["--rates", "1", "--users", "1"], "not --rates and --users"),
        (["--rates", "0"], "expected requests per second like"),
        (["--users", "0"], "expected numbers of users"),
        (["--users", "1", "--turns", "3-2"], "expected a number from 1 on"),
        (["--users", "1", "--requests", "1", "--duration", "1"], "only one of them"),
        (["--trace-times"], "of which trace?"),
        (["--users", "1", "--api-key-env", "NOT_SET"], "--api-key-env NOT_SET: the variable is"),
        (["--users", "1", "--header", "secret"], "expected 'Name: value'"),
        (["--users", "1", "--dataset", __file__], "line 1: not JSON"),
        (
            ["--users", "1", "--dataset", "mooncak"],
            "--dataset': 'mooncak': there is no such file, and no installed data of this name; "
            "expected the path of a file, or one of mooncake, agentic, azure, "
            "arena_hard_v01,",
        ),
    ],
)
def test_what_cannot_be_done_is_an_error_with_its_place(arguments: list[str], error: str) -> None:
    result = CliRunner().invoke(bench, ["load", "http://127.0.0.1:1", *arguments])

    assert result.exit_code != 0
    assert error in words(result.output)
    assert "secret" not in result.output


def test_nobody_listening_is_an_error_with_the_url() -> None:
    result = CliRunner().invoke(bench, ["load", "http://127.0.0.1:1", "--users", "1"])

    assert result.exit_code == 1
    assert "http://127.0.0.1:1: connect:" in result.output


async def test_a_server_that_wants_a_key_is_asked_with_one_the_error_says() -> None:
    async def answer(_: str, __: dict[str, str], ___: bytes) -> AsyncIterator[bytes]:
        yield whole({"error": "no key"}, status="401 Unauthorized")

    async with serving(answer) as url:
        with pytest.raises(BenchError, match=r"answered 401 .* --api-key-env NAME"):
            await ask_model(Target(url))


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("3..20", (3, 4, 5, 6, 8, 10, 12, 15, 20)),  # seed 000's ladder
        ("0.5..2", (0.5, 0.6, 0.8, 1, 1.2, 1.5, 2)),
        ("7..7", (7,)),
        ("3,4,5.5", (3, 4, 5.5)),
    ],
)
def test_rates_are_a_list_or_a_ladder(text: str, rates: tuple[float, ...]) -> None:
    assert request_rates(text) == rates


def test_numbers_of_users_and_ranges_are_read() -> None:
    assert user_counts("1,8") == (1, 8)
    assert (least_most("5"), least_most("5-9")) == ((5, 5), (5, 9))
    with pytest.raises(click.BadParameter, match="9-5"):
        least_most("9-5")
