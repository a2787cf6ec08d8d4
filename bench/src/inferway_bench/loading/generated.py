"""Text of given lengths, and generated chats: sessions that grow turn by turn behind a few shared
system prompts. Pure.

Each of the words, with the space before it, is one token to GPT-2's, Llama 3's, Qwen's, DeepSeek's,
SmolLM2's and other byte-level vocabularies (a test counts some), and drawn at random they repeat
nothing: equal texts have equal tokens, and others share no block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from random import Random

from inferway_bench.loading.workload import Message, Session, Turn

Range = tuple[int, int]  # least and most, drawn evenly

_WORDS = """
the of and to in is was for that on with as are be this from at by not have or an which it one
had were but all their has there been if more when will would who so no out up into do any your
what some other time only could new these two may then first also such like over should now made
after most people how where just because between even being back about them many well know way
she her him his our you can see get make use work world life day part year years water place
system different number large high small right left long great little own same still found every
house under last never family group government company school state city power public order case
point week against end few major early important next second used country business during
without again around however home both those another each while through much before must off
down very than its my we they he said did using take want find give tell call try need feel
become leave put mean keep let begin help talk turn start show hear play run move believe hold
bring write provide sit stand lose pay meet include continue set learn change lead understand
watch follow stop create speak read allow add spend grow open walk win offer remember love
consider appear buy wait serve die send expect build stay fall cut reach remain suggest raise
pass sell require report decide pull
""".split()  # noqa: SIM905


def text(num_tokens: int, seed: object) -> str:
    """Return this number of words, drawn with `seed`, each with a space before it."""
    return "".join([f" {word}" for word in Random(str(seed)).choices(_WORDS, k=num_tokens)])


@lru_cache(maxsize=1 << 14)
def block(num_tokens: int, seed: str) -> str:
    """Return what `text` does, and keep it: blocks of prompts come again."""
    return text(num_tokens, seed)


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
        turns, messages, answers = (
            str(least) if least == most else f"{least} to {most}"
            for least, most in (self.turns, self.message_tokens, self.answer_tokens)
        )
        return (
            f"generated chats: {self.systems} system prompts of {self.system_tokens} tokens, "
            f"{turns} turns of {messages} tokens, answers of {answers}"
        )


def generated_chats(spec: ChatSpec, seed: int, tag: str = "") -> Iterator[Session]:
    """Yield chats without end, the same for the same seed. With another tag they have other words,
    and all else is the same."""
    for number in count():
        yield Session(number, list(_turns(spec, seed, number, f"{seed} {tag}")))


def _turns(spec: ChatSpec, seed: int, number: int, words: str) -> Iterator[Turn]:
    rng = Random(f"{seed} session {number}")
    system = rng.randrange(spec.systems) if spec.systems else None
    for turn in range(rng.randint(*spec.turns)):
        asked, answered = rng.randint(*spec.message_tokens), rng.randint(*spec.answer_tokens)
        think = rng.expovariate(1 / spec.think) if spec.think else 0.0
        messages: list[Message] = []
        if turn == 0 and system is not None:
            said = block(spec.system_tokens, f"{words} system {system}")
            messages.append({"role": "system", "content": said})
        content = text(asked, f"{words} session {number} turn {turn}")
        messages.append({"role": "user", "content": content})
        fields: dict[str, object] = {"max_tokens": answered}
        if spec.force_length:
            fields["ignore_eos"] = True
        answer = None
        if spec.given_answers:
            answer = text(answered, f"{words} session {number} answer {turn}")
        yield Turn(messages, fields, think if turn else 0.0, answer)
