"""Sessions, their times and their text: generated, and of traces."""

from __future__ import annotations

import json
from itertools import count, islice, pairwise
from typing import Any

import numpy as np
import pytest
from bench.tests.loading.made import asks, session
from tests.stored import tokenizer_json
from tokenizers import Tokenizer

from inferway_bench.loading.generated import (
    CHATS,
    COMPLETIONS,
    ChatSpec,
    Conversation,
    Session,
    Turn,
    first_times,
    generated_chats,
    interleaved,
    poisson,
    shortened,
    text,
    traced,
)
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError
from inferway_sim.prepare import prepare_smollm2

SPEC = ChatSpec(
    systems=2, system_tokens=30, turns=(2, 4), message_tokens=(5, 9), answer_tokens=(3, 6)
)


def chats(count: int, spec: ChatSpec = SPEC, seed: int = 1, tag: str = "") -> list[Session]:
    return list(islice(generated_chats(spec, seed, tag), count))


def words(turn: Turn, place: int = -1) -> str:
    return str(turn.messages[place]["content"])


def test_lengths_are_within_what_was_asked_for() -> None:
    turns = [turn for session in chats(50) for turn in session.turns]

    assert {len(session.turns) for session in chats(50)} == {2, 3, 4}
    assert {len(words(turn).split()) for turn in turns} == {5, 6, 7, 8, 9}
    assert {turn.fields["max_tokens"] for turn in turns} == {3, 4, 5, 6}


def test_first_turns_begin_with_one_of_the_shared_system_prompts() -> None:
    systems = {words(session.turns[0], 0) for session in chats(50)}

    assert len(systems) == 2
    assert all(len(system.split()) == 30 for system in systems)
    assert all(len(session.turns[1].messages) == 1 for session in chats(50))


def test_no_two_messages_are_the_same() -> None:
    said = [words(turn) for session in chats(50) for turn in session.turns]

    assert len(set(said)) == len(said)


def test_another_tag_changes_the_words_and_nothing_else() -> None:
    one, other = chats(5, tag="a")[3], chats(5, tag="b")[3]

    assert [t.fields for t in one.turns] == [t.fields for t in other.turns]
    assert [len(words(t).split()) for t in one.turns] == [
        len(words(t).split()) for t in other.turns
    ]
    assert words(one.turns[0], 0) != words(other.turns[0], 0)


def test_a_turn_is_the_same_whenever_it_is_made() -> None:
    session = chats(1)[0]

    assert session.turns[1] == session.turns[1] == chats(1)[0].turns[1]


def test_answers_are_given_only_if_that_was_asked_for() -> None:
    given = ChatSpec(given_answers=True, answer_tokens=(7, 7))

    assert chats(1)[0].turns[0].answer is None
    assert len(str(chats(1, given)[0].turns[0].answer).split()) == 7


def test_servers_that_refuse_ignore_eos_are_not_sent_it() -> None:
    free = ChatSpec(force_length=False)

    assert chats(1)[0].turns[0].fields["ignore_eos"] is True
    assert "ignore_eos" not in chats(1, free)[0].turns[0].fields


def test_a_turns_body_is_the_whole_conversation_with_what_was_answered() -> None:
    conversation = Conversation()
    first, second = asks("one", "two", max_tokens=7)

    conversation.ask(first, {"model": "m"})
    conversation.hear(first, "answer")
    path, body = conversation.ask(second, {"model": "m"})

    assert path == CHATS
    assert json.loads(body) == {
        "model": "m",
        "max_tokens": 7,
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "two"},
        ],
    }


def test_a_turns_own_answer_takes_the_place_of_the_servers() -> None:
    conversation = Conversation()
    turn = Turn(({"role": "user", "content": "one"},), answer="given")

    conversation.ask(turn, {})
    conversation.hear(turn, "the server's")
    _, body = conversation.ask(asks("two")[0], {})

    assert json.loads(body)["messages"][1]["content"] == "given"


def test_fields_that_bring_a_prompt_are_sent_as_they_are() -> None:
    path, body = Conversation().ask(Turn(fields={"prompt": "p"}), {"model": "m"})

    assert (path, json.loads(body)) == (COMPLETIONS, {"model": "m", "prompt": "p"})


def test_a_long_prompt_is_made_when_it_is_sent() -> None:
    path, body = Conversation().ask(
        Turn(fields={"max_tokens": 7}, prompt=lambda: {"prompt": "long"}), {"model": "m"}
    )

    assert (path, json.loads(body)) == (
        COMPLETIONS,
        {"model": "m", "max_tokens": 7, "prompt": "long"},
    )


def endless(turns: int) -> object:
    return (session(*["x"] * turns, number=number) for number in count())


def test_poisson_times_have_the_rate_and_no_memory() -> None:
    times = first_times(poisson(10, seed=1), seconds=400, count=None)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert mean == pytest.approx(0.1, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_the_same_seed_draws_the_same_times() -> None:
    one, same, other = (first_times(poisson(5, seed), seconds=None, count=9) for seed in (1, 1, 2))

    assert one == same != other


def test_interleaved_sessions_use_every_time_exactly_once() -> None:
    times = [0.1 * i for i in range(100)]

    planned = interleaved(endless(4), times, live=10, seed=1)  # type: ignore[arg-type]

    assert sorted(at for s in planned for at in s.at) == times
    assert all(len(s.turns) == len(s.at) for s in planned)
    assert [s.at[0] for s in planned] == sorted(s.at[0] for s in planned)


def open_at(planned: list[Session], moment: float) -> int:
    return sum(s.at[0] <= moment <= s.at[-1] for s in planned)


def test_no_more_sessions_are_open_than_asked_for_and_turns_leave_time_for_answers() -> None:
    times = [float(i) for i in range(200)]

    planned = interleaved(endless(5), times, live=10, seed=2)  # type: ignore[arg-type]

    assert max(open_at(planned, t) for t in times) == 10
    assert min(b - a for s in planned for a, b in pairwise(s.at)) >= 5


def test_the_same_seed_gives_each_time_to_the_same_turn() -> None:
    times = [float(i) for i in range(50)]

    one, same = (interleaved(endless(3), times, 8, seed=3) for _ in range(2))  # type: ignore[arg-type]

    assert [(s.number, s.at) for s in one] == [(s.number, s.at) for s in same]


def test_when_sessions_run_out_the_times_that_are_left_are_nobodys() -> None:
    planned = interleaved(iter([session("a", "b")]), [1.0, 2.0, 3.0], live=4, seed=0)

    assert [s.at for s in planned] == [(1.0, 2.0)]


def request(blocks: tuple[int, ...], tokens: int, **changes: Any) -> SimRequest:
    return SimRequest(blocks=blocks, prompt_tokens=tokens, output_tokens=5, session=0, **changes)


def sessions(*requests: SimRequest) -> list[Session]:
    workload = Workload("w", "about", 4, requests)
    at = np.array([float(r.start) for r in requests])
    return list(traced(workload, at, "seed"))


def sent_words(session: Session, turn: int = 0) -> list[str]:
    path, body = Conversation().ask(session.turns[turn], {})
    assert path == CHATS
    return str(json.loads(body)["messages"][0]["content"]).split()


def test_a_prompt_has_the_traces_length_and_equal_blocks_have_equal_words() -> None:
    one, other = sessions(request((1, 2), 10), request((1, 3), 11))

    assert (len(sent_words(one)), len(sent_words(other))) == (10, 11)
    assert sent_words(one)[:4] == sent_words(other)[:4]
    assert sent_words(one)[4:] != sent_words(other)[4:10]


def test_what_a_request_has_beside_its_blocks_is_its_own() -> None:
    one, other = sessions(request((1,), 8), request((1,), 8))

    assert sent_words(one)[4:] != sent_words(other)[4:]


def test_requests_that_follow_each_other_are_one_session_with_its_thinking() -> None:
    [session] = sessions(request((1,), 6, start=3.0), request((1, 2), 9, follows=0, think=2.5))

    assert session.at == (3.0,)
    assert [turn.think for turn in session.turns] == [0.0, 2.5]
    assert session.turns[1].fields["max_tokens"] == 5


def test_sessions_come_in_the_order_of_their_times() -> None:
    found = sessions(request((1,), 6, start=3.0), request((2,), 6, start=1.0))

    assert [session.at for session in found] == [(1.0,), (3.0,)]


def test_too_long_prompts_are_left_out_with_what_follows_them() -> None:
    requests = [
        request((1,), 50),
        request((2,), 6),
        request((2, 3), 9, follows=1),
        request((2, 3), 50, follows=2),
        request((2, 3), 8, follows=3),
    ]

    short = shortened(Workload("w", "about", 4, requests), most_tokens=20)

    assert [(r.prompt_tokens, r.follows) for r in short.requests] == [(6, None), (9, 0)]
    assert "2 of 5 requests" in short.about


def test_if_nothing_is_short_enough_the_error_says_what_is_shortest() -> None:
    with pytest.raises(BenchError, match="shortest prompt has 50 tokens"):
        shortened(Workload("w", "about", 4, [request((1,), 50)]), most_tokens=20)


def tokenizer(name: str) -> Tokenizer:
    if name == "smollm2":
        return Tokenizer.from_file(str(prepare_smollm2() / "tokenizer.json"))
    return Tokenizer.from_str(tokenizer_json(name))


@pytest.mark.parametrize("name", ["smollm2", "gpt-2", "falcon", "starcoder", "bert-bge"])
def test_each_word_is_one_token(name: str) -> None:
    counted = len(tokenizer(name).encode(text(1000, "a"), add_special_tokens=False).ids)

    assert counted == 1000


@pytest.mark.parametrize("name", ["phi-3", "t5-small"])
def test_sentencepiece_vocabularies_are_within_a_hundredth(name: str) -> None:
    counted = len(tokenizer(name).encode(text(1000, "a"), add_special_tokens=False).ids)

    assert counted == pytest.approx(1000, rel=0.01)


def test_the_seed_decides_the_text() -> None:
    assert text(50, "a") == text(50, "a") != text(50, "b")
