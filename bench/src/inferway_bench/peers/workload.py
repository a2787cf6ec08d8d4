"""Chats for a fleet that is short of memory: drawn with a seed, the same for every router. Pure.

Sessions share a few system prompts and grow turn by turn, all of them side by side, so that an
engine sees many others between two turns of one. What the assistant said is part of the workload
and not what the engine answered: every router gets the same bytes, in the same order, at the same
intended times, whatever it did before. So of earlier turns only the prompts are reused.

The text is real (`conversations`), its sentences drawn anew; a tag of the run stands in front of
each system prompt, so that nothing of one run is left in any cache or tree of prefixes at the next.
"""

from __future__ import annotations

import random
import re
from collections import deque

import msgspec

from inferway_bench.conversations import texts
from inferway_bench.loading.workload import Session, Turn


class ChatSpec(msgspec.Struct, frozen=True):
    """The shape of chats. Lengths are in characters, of which SmolLM2 takes 4 to a token."""

    sessions: int = 40
    turns: int = 5  # of each session
    systems: int = 4  # prompts that sessions share, as many sessions each
    system_chars: int = 1600
    message_chars: tuple[int, int] = (200, 700)  # least and most, evenly
    reply_chars: tuple[int, int] = (100, 500)
    answer_tokens: int = 12  # of each answer that is generated
    apart: int = 10  # requests of others, at least, between two turns of a session

    @property
    def requests(self) -> int:
        return self.sessions * self.turns


def chats(
    spec: ChatSpec, seed: int, tag: str, rate: float, most: int | None = None
) -> list[Session]:
    """Return sessions in the order of their first turns, for `rate` requests a second: a Poisson
    process, each time another session's turn. Seed and spec decide all but the tag and how fast it
    goes. `most` keeps only the first requests of all."""
    rng = random.Random(seed)
    writer = _Writer(rng)
    systems = [writer.text(spec.system_chars, spec.system_chars) for _ in range(spec.systems)]
    times: list[list[float]] = [[] for _ in range(spec.sessions)]
    at = 0.0
    for place, number in enumerate(_order(spec, rng)):
        at += rng.expovariate(1.0)
        if most is None or place < most:
            times[number].append(at / rate)
    made = []
    for number in range(spec.sessions):
        which = number % spec.systems
        system = {"role": "system", "content": f"[{tag}.{which}] {systems[which]}"}
        turns = _turns(spec, writer, system, name=f"{tag}-{number}")
        if times[number]:
            made.append(Session(number, turns[: len(times[number])], times[number]))
    return sorted(made, key=lambda session: session.at[0])


def _turns(spec: ChatSpec, writer: _Writer, system: dict[str, str], name: str) -> list[Turn]:
    """`name` is the session's, where vllm-router's consistent_hash looks for it: it does not look
    at OpenAI's `user`, and engines ignore the field."""
    fields = {
        "session_params": {"session_id": name},
        "max_tokens": spec.answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    turns = []
    for number in range(spec.turns):
        message = {"role": "user", "content": writer.text(*spec.message_chars)}
        messages = [message] if number else [system, message]
        turns.append(Turn(messages, fields, answer=writer.text(*spec.reply_chars)))
    return turns


def _order(spec: ChatSpec, rng: random.Random) -> list[int]:
    """Whose turn it is. Sessions with more turns left come sooner, so that all last to the end;
    near it there may be none that was not there a moment ago."""
    left = [spec.turns] * spec.sessions
    recent: deque[int] = deque(maxlen=spec.apart)
    order = []
    for _ in range(spec.requests):
        there = [number for number in range(spec.sessions) if left[number]]
        rested = [number for number in there if number not in recent] or there
        number = rng.choices(rested, [left[one] for one in rested])[0]
        left[number] -= 1
        recent.append(number)
        order.append(number)
    return order


class _Writer:
    """Real sentences in an order of their own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        pieces = [p for text in texts() for p in re.split(r"(?<=[.!?] )|(?<=\n)", f"{text}\n")]
        self._sentences = [piece for piece in pieces if len(piece) > 20]

    def text(self, least: int, most: int) -> str:
        """Return text of a length that is drawn evenly between `least` and `most` characters."""
        length = self._rng.randint(least, most)
        written = ""
        while len(written) < length:
            written += self._rng.choice(self._sentences)
        return written[:length]
