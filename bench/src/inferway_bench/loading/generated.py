"""Generated chats: sessions that grow turn by turn behind a few shared system prompts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from inferway_bench.loading.words import block, text
from inferway_bench.loading.workload import MadeTurns, Message, Session, Turn

Range = tuple[int, int]  # least and most, drawn evenly


@dataclass(frozen=True, slots=True)
class ChatSpec:
    """The kind of the chats that are generated; lengths in tokens."""

    systems: int = 4  # different system prompts; 0: none
    system_tokens: int = 500
    turns: Range = (3, 8)
    message_tokens: Range = (50, 200)
    answer_tokens: Range = (50, 150)
    think: float = 0.0  # seconds, the mean of an exponential, before each turn but the first
    force_length: bool = True  # answers are as long as drawn: ignore_eos, as vLLM has it
    given_answers: bool = False  # the history keeps generated answers, not the server's

    @property
    def about(self) -> str:
        return (
            f"generated chats: {self.systems} system prompts of {self.system_tokens} tokens, "
            f"{_range(self.turns)} turns of {_range(self.message_tokens)} tokens, answers of "
            f"{_range(self.answer_tokens)}"
        )


def _range(least_most: Range) -> str:
    least, most = least_most
    return str(least) if least == most else f"{least} to {most}"


def generated_chats(spec: ChatSpec, seed: int, tag: str = "") -> Iterator[Session]:
    """Yield chats without end, the same for the same seed. With another tag they have other words,
    and all else is the same."""
    for number in count():
        yield _session(spec, seed, number, f"{seed} {tag}")


def _session(spec: ChatSpec, seed: int, number: int, words: str) -> Session:
    rng = Random(f"{seed} session {number}")
    system = rng.randrange(spec.systems) if spec.systems else None
    lengths = [
        (rng.randint(*spec.message_tokens), rng.randint(*spec.answer_tokens))
        for _ in range(rng.randint(*spec.turns))
    ]
    thinking = [rng.expovariate(1 / spec.think) if spec.think else 0.0 for _ in lengths]

    def make(turn: int) -> Turn:
        asked, answered = lengths[turn]
        messages: list[Message] = []
        if turn == 0 and system is not None:
            said = block(spec.system_tokens, f"{words} system {system}")
            messages.append({"role": "system", "content": said})
        content = text(asked, f"{words} session {number} turn {turn}")
        messages.append({"role": "user", "content": content})
        fields: dict[str, object] = {"max_tokens": answered}
        if spec.force_length:
            fields["ignore_eos"] = True
        answer = text(answered, f"{words} session {number} answer {turn}")
        return Turn(
            tuple(messages),
            fields,
            think=thinking[turn] if turn else 0.0,
            answer=answer if spec.given_answers else None,
        )

    return Session(number, MadeTurns(len(lengths), make))
