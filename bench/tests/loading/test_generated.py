"""Generated chats."""

from __future__ import annotations

from itertools import islice

from inferway_bench.loading.generated import ChatSpec, Session, Turn, generated_chats

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
