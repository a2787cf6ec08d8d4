"""`inferway bench chat-overhead`: pairs, answers, the fit, and a miniature run."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import click
import msgspec
import pytest
from bench.tests.loading.made import failed, sample
from bench.tests.test_report import MACHINE
from click.testing import CliRunner

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.chat_overhead.answers import Outcome
from inferway_bench.chat_overhead.answers import outcome as outcome_of
from inferway_bench.chat_overhead.fitting import Fit, fit
from inferway_bench.chat_overhead.load import send
from inferway_bench.chat_overhead.plot import pictures
from inferway_bench.chat_overhead.prompts import PromptMaker
from inferway_bench.chat_overhead.report import CHAT_OVERHEAD, summary
from inferway_bench.chat_overhead.results import (
    ChatOverheadRun,
    summarise,
)
from inferway_bench.chat_overhead.run import Plan, run_chat_overhead
from inferway_bench.chat_overhead.workload import Arm, Kind, Planned, Prompt, make_body, stage
from inferway_bench.chats import Turns, default_data_dir, load_conversations
from inferway_bench.cli import bench
from inferway_bench.cli.chat_overhead import request_rates, token_range
from inferway_bench.loading.samples import Sample
from inferway_bench.plotting import write
from inferway_bench.processes import BenchError

DOCS = Path(__file__).parents[2] / "docs"

PROMPT = Prompt([{"role": "user", "content": "Hi"}], "<user>Hi", [1, 2, 3], max_tokens=7)

MINIATURE = Plan(rates=(20,), seconds=1, fit_seconds=1, warm_up_seconds=1, prompt_tokens=(200, 300))


def outcome(pair: int, arm: Arm, ttft_us: int, *, kind: Kind = "text", cached: int = 16) -> Outcome:
    return Outcome(
        pair=pair,
        kind=kind,
        arm=arm,
        lag_us=100,
        ttft_us=ttft_us,
        itl_us=2_800.0,
        prompt_tokens=700,
        completion_tokens=10,
        cached_tokens=cached,
        matched_blocks=1,
        engine="e",
    )


def one_prompt() -> list[Planned]:
    return stage(10, 20, iter([PROMPT] * 1_000), "m", "salt", seed=1)


def test_each_pair_has_both_arms_next_to_each_other_in_either_order() -> None:
    planned = one_prompt()

    assert [p.pair for p in planned] == [i // 2 for i in range(len(planned))]
    orders = {(first.arm, second.arm) for first, second in zip(planned[::2], planned[1::2])}  # noqa: B905
    assert orders == {("chat", "completion"), ("completion", "chat")}


def test_half_of_the_pairs_bring_text_and_half_bring_ids() -> None:
    kinds = [p.kind for p in one_prompt()]

    assert kinds.count("text") == kinds.count("ids") == len(kinds) / 2


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times = [p.at for p in stage(10, 400, iter([PROMPT] * 4_000), "m", "salt", seed=2)]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.05)
    # An exponential distribution's deviation is its mean.
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.1, rel=0.1)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert one_prompt() == one_prompt()


def test_arms_differ_in_prompt_and_salt_only() -> None:
    chat = make_body(PROMPT, "text", "chat", "m", "s")
    text = make_body(PROMPT, "text", "completion", "m", "s")
    ids = make_body(PROMPT, "ids", "completion", "m", "s")

    assert chat["messages"] == PROMPT.messages
    assert (text["prompt"], ids["prompt"]) == (PROMPT.text, PROMPT.token_ids)
    assert text["add_special_tokens"] is False
    assert chat["cache_salt"] != text["cache_salt"] == ids["cache_salt"]
    same = {"model", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options"}
    assert all(chat[name] == text[name] == ids[name] for name in same)


@pytest.mark.slow
def test_prompts_have_the_length_asked_for_and_only_the_system_prompt_in_common() -> None:
    turns = Turns(load_conversations(default_data_dir() / "chat"), seed=0)
    maker = PromptMaker(str(prepare_smollm2()), turns, (600, 800), (1, 100), seed=0)

    prompts = [next(maker) for _ in range(20)]
    maker.close()

    assert all(600 <= len(prompt.token_ids) <= 800 for prompt in prompts)
    assert all(1 <= prompt.max_tokens <= 100 for prompt in prompts)
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == 1
    assert len({prompt.messages[1]["content"][:6] for prompt in prompts}) == 20


@pytest.mark.slow
def test_prompts_too_short_for_the_system_prompt_are_refused() -> None:
    turns = Turns([[{"role": "user", "content": "Hi"}]], seed=0)

    with pytest.raises(BenchError, match="--prompt-tokens: at least"):
        PromptMaker(str(prepare_smollm2()), turns, (20, 30), (1, 1), seed=0)


def event(content: object) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


TEXT_TOKEN = event({"choices": [{"text": "a"}]})
USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
)
DONE = b"data: [DONE]\n\n"


PLANNED = Planned(1, "text", "chat", 0.0, "")
HEADERS = {"x-inferway-matched-blocks": "3", "x-inferway-engine": "e1"}


def test_times_count_from_sending_and_the_gateways_words_are_read() -> None:
    sent = sample(1.0, wait=0.003, sent=1.001, headers=HEADERS)

    read = outcome_of(PLANNED, sent)

    assert read.error is None
    assert (read.lag_us, read.ttft_us) == (1_000, 2_000)
    assert read.itl_us == 10_000
    assert (read.prompt_tokens, read.completion_tokens, read.cached_tokens) == (40, 3, 30)
    assert (read.matched_blocks, read.engine) == (3, "e1")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (failed(0.0), "status 503: busy"),
        (sample(0.0, completion_tokens=None), "without usage"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(found: Sample, said: str) -> None:
    read = outcome_of(PLANNED, found)

    assert said in str(read.error)
    assert read.ttft_us is None


def test_differences_are_taken_pair_by_pair() -> None:
    outcomes = [
        outcome(0, "completion", 100_000),
        outcome(1, "chat", 251_000),
        outcome(0, "chat", 100_500),
        outcome(1, "completion", 250_000),
        outcome(2, "chat", 90_000, kind="ids"),
        outcome(2, "completion", 89_000, kind="ids"),
    ]

    measured = summarise(5, outcomes, generator_cpu=0.01)

    assert measured.pairs["text"].added_ttft_ms() == [0.5, 1.0]
    assert measured.pairs["ids"].added_ttft_ms() == [1.0]
    assert measured.pairs["text"].added_itl_ms() == [0, 0]
    assert (measured.num_sent, measured.num_succeeded, measured.num_unlike) == (6, 6, 0)


def test_a_pair_of_which_one_failed_counts_as_sent_and_not_as_a_pair() -> None:
    failed = Outcome(1, "text", "chat", 0, "answered 503")
    good = [outcome(0, "chat", 2), outcome(0, "completion", 1), outcome(1, "completion", 1)]

    measured = summarise(5, [*good, failed], generator_cpu=0)

    assert len(measured.pairs["text"].ttft_us["chat"]) == 1
    assert (measured.num_sent, measured.num_succeeded) == (4, 3)


def test_a_pair_whose_caches_differed_is_left_out_and_counted() -> None:
    outcomes = [
        outcome(0, "chat", 2),
        outcome(0, "completion", 1),
        outcome(1, "chat", 2, cached=32),
        outcome(1, "completion", 1),
    ]

    measured = summarise(5, outcomes, generator_cpu=0)

    assert measured.num_unlike == 1
    assert len(measured.pairs["text"].ttft_us["chat"]) == 1


def test_a_pair_with_different_prompts_is_no_comparison() -> None:
    other = msgspec.structs.replace(outcome(0, "completion", 1), prompt_tokens=701)

    with pytest.raises(BenchError, match="700 tokens, the completion's 701"):
        summarise(5, [outcome(0, "chat", 2), other], generator_cpu=0)


def test_a_stage_without_any_pair_says_what_went_wrong() -> None:
    with pytest.raises(BenchError, match="answered 503"):
        summarise(5, [Outcome(0, "text", "chat", 0, "answered 503")], generator_cpu=0)


def test_engines_are_fitted_so_that_the_seeds_mean_comes_out() -> None:
    fitted = fit([10.0, 11.0, 12.0], [500, 700])

    assert fitted.overhead_ms + 600 * fitted.prefill_us_per_token / 1e3 == pytest.approx(
        111, abs=0.01
    )


def test_a_machine_slower_than_the_seeds_engines_cannot_be_fitted() -> None:
    with pytest.raises(BenchError, match="a machine that is less busy"):
        fit([120.0], [600])


def example_run() -> ChatOverheadRun:
    outcomes = []
    for pair in range(40):
        kind: Kind = "text" if pair % 2 else "ids"
        base = 110_000 + 50 * pair
        outcomes += [
            outcome(pair, "completion", base, kind=kind),
            outcome(pair, "chat", base + 400 + 10 * pair, kind=kind),
        ]
    return ChatOverheadRun(
        machine=MACHINE,
        command="inferway bench chat-overhead",
        seed=0,
        seconds=4.0,
        engines="2 simulated engines",
        fit=Fit(3.0, 600.0, 180.0),
        text="real ones",
        stages=[summarise(rate, outcomes, generator_cpu=0.02) for rate in (3, 20)],
    )


def test_the_goal_is_judged_by_the_upper_end_of_the_interval() -> None:
    run = example_run()

    assert run.added_ttft("text").value == pytest.approx(0.6)
    assert run.is_met("text")
    slower = [
        msgspec.structs.replace(
            outcome(i, arm, 110_000 + (3_000 * (i % 2) if arm == "chat" else 0))
        )
        for i in range(10)
        for arm in ("chat", "completion")
    ]
    missed = msgspec.structs.replace(run, stages=[summarise(3, slower, 0)])
    assert missed.added_ttft("text").value == 1.5
    assert not missed.is_met("text")
    assert "asked: upper end ≤ 1.11: not met" in summary(missed)[0]


def test_markdown_has_the_difference_the_goal_and_the_seeds_own() -> None:
    text = CHAT_OVERHEAD.markdown(example_run())

    assert "| its text | 40 | 111.0 | 111.6 | +0.60 (" in text
    assert [goal.is_met for goal in example_run().goals()] == [True, True]
    assert "| seed 000 |  | 111 | 122 | +11, +10 % |" in text
    assert "100.00% of them answered" in text


def test_the_picture_is_a_png_and_an_svg(tmp_path: Path) -> None:
    [picture] = pictures(example_run())
    png, svg = write(picture, tmp_path)

    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()


class AnswersTogether(asyncio.Protocol):
    """One connection to a server that answers nobody before `expected` have asked."""

    def __init__(self, asked: list[asyncio.Transport], expected: int) -> None:
        self._asked = asked
        self._expected = expected

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert data.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        self._asked.append(self._transport)
        if len(self._asked) == self._expected:
            body = TEXT_TOKEN + USAGE + DONE
            for transport in self._asked:
                transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_requests_leave_at_their_times_although_nobody_was_answered_before() -> None:
    """A closed loop would wait for ever."""

    async def serve_and_send() -> list[Outcome]:
        asked: list[asyncio.Transport] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: AnswersTogether(asked, 4), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        body = '{"messages":[]}'
        planned = [Planned(i // 2, "text", "chat", i / 100, body) for i in range(4)]
        async with server:
            return (await send(f"http://127.0.0.1:{port}", planned))[0]

    outcomes = asyncio.run(serve_and_send())

    assert [o.error for o in outcomes] == [None] * 4


@pytest.fixture(scope="module")
def run() -> ChatOverheadRun:
    return run_chat_overhead(default_data_dir(), MINIATURE, print)


@pytest.mark.slow
def test_all_requests_succeed_and_all_pairs_are_alike(run: ChatOverheadRun) -> None:
    [measured] = run.stages

    assert measured.num_sent == measured.num_succeeded == 20
    assert measured.num_unlike == 0
    assert sum(len(pairs.ttft_us["chat"]) for pairs in measured.pairs.values()) == 10


@pytest.mark.slow
def test_the_gateway_matches_what_the_engines_have_cached(run: ChatOverheadRun) -> None:
    [measured] = run.stages

    least, most = measured.matched_blocks
    assert least == most > 0
    assert measured.cached_tokens == (16 * least, 16 * most)


@pytest.mark.slow
def test_the_fleet_is_about_as_slow_as_the_seeds(run: ChatOverheadRun) -> None:
    times = run.pooled("text").ttft_us["completion"]

    assert 60_000 < min(times) < 300_000  # the others may have met a busy machine


@pytest.mark.parametrize("text", ["", "0", "3,0", "x", "3;4", "-1"])
def test_rates_are_positive_numbers(text: str) -> None:
    with pytest.raises(click.BadParameter, match="requests per second"):
        request_rates(text)


@pytest.mark.parametrize("text", ["", "5", "9-3", "0-4", "a-b"])
def test_ranges_are_two_numbers_in_order(text: str) -> None:
    with pytest.raises(click.BadParameter, match="two numbers"):
        token_range(text)


def test_rates_and_ranges_are_read() -> None:
    assert request_rates("3,4.5") == (3.0, 4.5)
    assert token_range("600-800") == (600, 800)


def test_an_engine_that_is_not_there_ends_the_command_with_the_cure() -> None:
    result = CliRunner().invoke(bench, ["chat-overhead", "--engine", "http://127.0.0.1:1"])

    assert result.exit_code == 1
    assert "the cure: start an engine there" in result.output
