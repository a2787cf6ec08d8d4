"""`inferway bench chat-overhead`: pairs, what is computed of them, and a miniature run."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from bench.tests.loading.made import failed, sample
from bench.tests.runs import a_run, unseen

from inferway_bench.chat_overhead import (
    CHAT_OVERHEAD,
    ChatOverheadPlan,
    RateSent,
    error_of,
    findings,
    goals,
)
from inferway_bench.chat_pairs import Arm, Kind, Prompt, Request, make_body, planned, prompts_of
from inferway_bench.chats import Turns, default_data_dir, load_conversations
from inferway_bench.loading.samples import Sample
from inferway_bench.processes import BenchError
from inferway_bench.rows import Run
from inferway_bench.spread import Interval
from inferway_sim.prepare import prepare_smollm2

PROMPT = Prompt([{"role": "user", "content": "Hi"}], "<user>Hi", [1, 2, 3], max_tokens=7)

MINIATURE = ChatOverheadPlan(rates=(20,), seconds=1, warm_up_seconds=1, prompt_tokens=(200, 300))
body_of = partial(make_body, "m", "salt")


def request(pair: int, arm: Arm, kind: Kind = "its text") -> Request:
    return Request(pair, kind, arm, 0.0, {})


def answer(ttft_ms: float, *, cached: int = 16, prompt_tokens: int = 700) -> Sample:
    """Sent at once; ten tokens, one each 2.8 ms."""
    first = ttft_ms / 1e3
    return sample(
        0.0, first, last=first + 9 * 0.0028, completion_tokens=10, cached_tokens=cached,
        prompt_tokens=prompt_tokens, headers={"x-inferway-matched-blocks": "1"},
    )  # fmt: skip


def sent(*answers: tuple[int, Arm, Sample], kind: Kind = "its text", rate: float = 5) -> RateSent:
    requests = [request(pair, arm, kind) for pair, arm, _ in answers]
    return RateSent(rate, requests, [one for *_, one in answers], cpu_share=0.02)


def some_requests() -> list[Request]:
    return planned(10, 20, iter([PROMPT] * 1_000), body_of, seed=1)


def test_each_pair_has_both_arms_next_to_each_other_in_either_order() -> None:
    requests = some_requests()

    assert [r.pair for r in requests] == [i // 2 for i in range(len(requests))]
    orders = {(first.arm, second.arm) for first, second in zip(requests[::2], requests[1::2])}  # noqa: B905
    assert orders == {("chat", "completion"), ("completion", "chat")}


def test_half_of_the_pairs_bring_text_and_half_bring_ids() -> None:
    kinds = [r.kind for r in some_requests()]

    assert kinds.count("its text") == kinds.count("its token ids") == len(kinds) / 2


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times = [r.at for r in planned(10, 400, iter([PROMPT] * 4_000), body_of, seed=2)]
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.05)
    # An exponential distribution's deviation is its mean.
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.1, rel=0.1)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert some_requests() == some_requests()


def test_arms_differ_in_prompt_and_salt_only() -> None:
    chat = body_of(PROMPT, "its text", "chat")
    text = body_of(PROMPT, "its text", "completion")
    ids = body_of(PROMPT, "its token ids", "completion")

    assert chat["messages"] == PROMPT.messages
    assert (text["prompt"], ids["prompt"]) == (PROMPT.text, PROMPT.token_ids)
    assert text["add_special_tokens"] is False
    assert chat["cache_salt"] != text["cache_salt"] == ids["cache_salt"]
    same = {"model", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options"}
    assert all(chat[name] == text[name] == ids[name] for name in same)


@pytest.mark.slow
def test_prompts_have_the_length_asked_for_and_only_the_system_prompt_in_common() -> None:
    turns = Turns(load_conversations(default_data_dir() / "chat"), seed=0)

    with prompts_of(str(prepare_smollm2()), turns, (600, 800), (1, 100), seed=0) as stream:
        prompts = [next(stream) for _ in range(20)]

    assert all(600 <= len(prompt.token_ids) <= 800 for prompt in prompts)
    assert all(1 <= prompt.max_tokens <= 100 for prompt in prompts)
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == 1
    assert len({prompt.messages[1]["content"][:6] for prompt in prompts}) == 20


@pytest.mark.slow
def test_prompts_too_short_for_the_system_prompt_are_refused() -> None:
    turns = Turns([[{"role": "user", "content": "Hi"}]], seed=0)

    with (
        pytest.raises(BenchError, match="--prompt-tokens: at least"),
        prompts_of(str(prepare_smollm2()), turns, (20, 30), (1, 1), seed=0),
    ):
        pass


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (failed(0.0), "status 503: busy"),
        (sample(0.0, completion_tokens=None), "without usage"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(found: Sample, said: str) -> None:
    assert said in str(error_of(found))
    assert error_of(sample(0.0)) is None


def run_of(*stages: RateSent) -> Run:
    found = findings(ChatOverheadPlan(seconds=4), stages, "real ones")
    return a_run("chat-overhead", found)


def added(run: Run, kind: Kind = "its text") -> Interval:
    row = run.find("all", **{"chat beside a completion with": kind})
    assert row is not None
    found = row.values["TTFT added"]
    assert isinstance(found, Interval)
    return found


def test_differences_are_taken_pair_by_pair() -> None:
    text = sent(
        (0, "completion", answer(100.0)), (1, "chat", answer(251.0)),
        (0, "chat", answer(100.5)), (1, "completion", answer(250.0)),
    )  # fmt: skip

    [of_text, of_ids] = run_of(text).select("rates")

    assert of_text.values["TTFT added"] == pytest.approx([0.5, 1.0])
    assert of_text.values["ITL added"] == pytest.approx([0, 0], abs=1e-9)
    assert of_text.values["ITL chat"] == pytest.approx([2.8, 2.8])
    assert of_ids.values["TTFT added"] == []


def test_times_count_from_sending() -> None:
    late = sample(1.0, wait=0.003, sent=1.001, headers={"x-inferway-matched-blocks": "3"})

    [row, _] = run_of(sent((0, "chat", late), (0, "completion", late))).select("rates")

    assert row.repeats("TTFT chat") == pytest.approx([2.0])


def test_a_pair_of_which_one_failed_counts_as_sent_and_not_as_a_pair() -> None:
    stage = sent(
        (0, "chat", answer(2)), (0, "completion", answer(1)), (1, "completion", answer(1)),
        (1, "chat", failed(0.0)),
    )  # fmt: skip

    assert len(stage.pairs()[0]) == 1
    assert "4 requests, 75.00% of them answered" in run_of(stage).about[0]


def test_a_pair_whose_caches_differed_is_left_out_and_counted() -> None:
    stage = sent(
        (0, "chat", answer(2)), (0, "completion", answer(1)),
        (1, "chat", answer(2, cached=32)), (1, "completion", answer(1)),
    )  # fmt: skip
    alike, unlike = stage.pairs()

    assert (len(alike), unlike) == (1, 1)
    assert "left out because these differed: 1." in run_of(stage).about[1]


def test_a_pair_with_different_prompts_is_no_comparison() -> None:
    stage = sent((0, "chat", answer(2)), (0, "completion", answer(1, prompt_tokens=701)))

    with pytest.raises(BenchError, match="700 tokens, the completion's 701"):
        stage.pairs()


def test_a_rate_without_any_pair_says_what_went_wrong() -> None:
    with pytest.raises(BenchError, match="status 503"):
        sent((0, "chat", failed(0.0))).pairs()


def example_run(slower_ms: float = 0.4, growth_ms: float = 0.02) -> Run:
    answers: list[tuple[int, Arm, Sample]] = []
    for pair in range(20):
        base = 110.0 + 0.05 * pair
        answers += [
            (pair, "completion", answer(base)),
            (pair, "chat", answer(base + slower_ms + growth_ms * pair)),
        ]
    return run_of(*(sent(*answers, rate=rate) for rate in (3, 20)))


def test_the_goal_is_judged_by_the_upper_end_of_the_interval() -> None:
    run, slower = example_run(), example_run(1.0, 0.05)

    assert added(run).value == pytest.approx(0.59)
    assert [goal.is_met for goal in goals(run)] == [True]
    assert [goal.is_met for goal in goals(slower)] == [False]
    assert goals(slower)[0].asked == "upper end ≤ 1.11 ms (1%)"


def test_markdown_has_the_difference_the_goal_and_the_seeds_own() -> None:
    text = CHAT_OVERHEAD.markdown(example_run())

    assert "| its text | 40 | 110.5 (" in text
    assert "| +0.59 (" in text
    assert "| seed 000 |  | 111 | 122 | +11, +10 % |" in text
    assert "100.00% of them answered" in text


@pytest.fixture(scope="module")
def run() -> Run:
    return CHAT_OVERHEAD.run(MINIATURE, unseen)


@pytest.mark.slow
def test_all_requests_succeed_and_all_pairs_are_alike(run: Run) -> None:
    assert "20 requests, 100.00% of them answered" in run.about[0]
    assert "left out because these differed: 0." in run.about[1]
    assert sum(len(row.repeats("TTFT chat")) for row in run.select("rates")) == 10


@pytest.mark.slow
def test_engines_take_their_time_for_each_token_that_is_not_cached(run: Run) -> None:
    """200 tokens and more, of which 112 are cached, 181 µs each."""
    times = [ms for row in run.select("rates") for ms in row.repeats("TTFT completion")]

    assert min(times) > 88 * 0.181
