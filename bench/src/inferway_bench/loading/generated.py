"""Sessions and the times of their turns; text of given lengths; generated chats: sessions that grow
turn by turn behind shared prompts; and traces -> sessions: text of the lengths that the trace says,
equal where its blocks are. Pure.

Each of the words, with the space before it, is one token to GPT-2's, Llama 3's, Qwen's, DeepSeek's,
SmolLM2's and other byte-level vocabularies (a test counts some), and drawn at random they repeat
nothing: equal texts have equal tokens, and others share no block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count, islice, takewhile
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError

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


def shortened(workload: Workload, most_tokens: int) -> Workload:
    """Return the workload without its longer prompts, and without what follows them. Raises
    BenchError if nothing is left."""
    place: dict[int, int] = {}
    kept: list[SimRequest] = []
    for index, request in enumerate(workload.requests):
        follows = request.follows if request.follows is None else place.get(request.follows)
        is_orphan = request.follows is not None and follows is None
        if request.prompt_tokens <= most_tokens and not is_orphan:
            place[index] = len(kept)
            kept.append(msgspec.structs.replace(request, follows=follows))
    if not kept:
        shortest = min(request.prompt_tokens for request in workload.requests)
        raise BenchError(
            f"--max-prompt-tokens {most_tokens}: leaves nothing of the trace; its shortest prompt "
            f"has {shortest} tokens"
        )
    about = (
        f"{workload.about}; {len(kept):,} of {len(workload.requests):,} requests, those of up to "
        f"{most_tokens:,} tokens"
    )
    return Workload(workload.name, about, workload.block_tokens, kept, workload.grain)


def traced(
    workload: Workload, at: NDArray[np.float64], seed: str, force_length: bool = True
) -> Iterator[Session]:
    """Yield sessions in the order of `at`, the seconds at which requests come that follow none.
    Requests that follow each other are one session, and each of its turns brings its whole prompt.
    """
    requests = workload.requests
    following = {r.follows: i for i, r in enumerate(requests) if r.follows is not None}

    def turns(index: int | None) -> Iterator[Turn]:
        while index is not None:
            request = requests[index]
            fields: dict[str, object] = {"max_tokens": request.output_tokens}
            if force_length:
                fields["ignore_eos"] = True
            yield Turn((), fields, request.think, prompt=partial(_message, workload, index, seed))
            index = following.get(index)

    firsts = [i for i, r in enumerate(requests) if r.follows is None]
    for number, first in enumerate(sorted(firsts, key=lambda i: float(at[i]))):
        yield Session(number, list(turns(first)), (float(at[first]),))


def _message(workload: Workload, index: int, seed: str) -> dict[str, object]:
    """As many words as the request has tokens: those of its blocks, and some that no other has."""
    request, each = workload.requests[index], workload.block_tokens
    parts = [block(each, f"{seed} {name}") for name in request.blocks]
    rest = request.prompt_tokens - each * len(request.blocks)
    parts.append(text(max(0, rest), f"{seed} rest {index}"))
    return {"messages": [{"role": "user", "content": "".join(parts)}]}


Message = Mapping[str, Any]  # {"role": …, "content": …}, as OpenAI has it

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. Its chat is what was said before and `messages`; but if `fields` or
    `prompt` bring `messages` or a `prompt` themselves, that is sent and nothing else."""

    messages: Sequence[Message] = ()  # what is new: the user's, before the first turn the system's
    fields: Mapping[str, Any] = field(default_factory=dict)  # further ones: max_tokens, tools, …
    think: float = 0.0  # seconds from the answer before to this turn, where it has no time
    answer: str | None = None  # what the history keeps in place of the server's own answer
    prompt: Callable[[], Mapping[str, Any]] | None = None  # long ones are made when they are sent


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other: none is sent before the one before is answered.

    `at` has the intended times of the first of them, in seconds of the stage; turns beyond it come
    `think` seconds after the answer before. Closed loops look at `think` alone.
    """

    number: int
    turns: Sequence[Turn]
    at: Sequence[float] = ()


def tagged(session: Session, tag: str) -> Session:
    """Return the session with `tag`, if it is not empty, before the first text of its prompt.
    Raises BenchError where there is no text."""
    if not tag:
        return session
    first = session.turns[0]
    prompt, own = first.fields.get("prompt"), first.fields.get("messages")
    messages = list(first.messages if own is None else own)
    if isinstance(prompt, str):
        changed = replace(first, fields={**first.fields, "prompt": f"{tag} {prompt}"})
    elif messages and isinstance(content := messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": f"{tag} {content}"}
        changed = replace(first, messages=messages)
        if own is not None:
            changed = replace(first, fields={**first.fields, "messages": messages})
    else:
        raise BenchError(
            f"session {session.number + 1} of the file begins with no text, so that blocks cannot "
            "have prompts of their own; allowed: a first message, or a prompt, that is a string; "
            "fix: leave it out of the file"
        )
    return replace(session, turns=[changed, *session.turns[1:]])


class Conversation:
    """The history of a session, which the one that sends the session writes."""

    def __init__(self) -> None:
        self._history: list[Message] = []

    def ask(self, turn: Turn, defaults: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the path and the body of the turn, with `defaults` under its own fields."""
        body = {**defaults, **turn.fields, **(turn.prompt() if turn.prompt else {})}
        if "prompt" in body:
            return COMPLETIONS, msgspec.json.encode(body)
        if "messages" not in body:
            self._history += turn.messages
            body["messages"] = self._history
        return CHATS, msgspec.json.encode(body)

    def hear(self, turn: Turn, answer: str) -> None:
        """Add the answer to `turn`: the server's, or the one that the turn brings in its place."""
        said = answer if turn.answer is None else turn.answer
        self._history.append({"role": "assistant", "content": said})


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds without end, `rate` a second, of people who know nothing of
    each other."""
    rng = Random(seed)
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def first_times(times: Iterator[float], *, seconds: float | None, count: int | None) -> list[float]:
    """Return the times before `seconds`, and `count` of them at most. At least one of the limits is
    given."""
    return list(takewhile(lambda at: seconds is None or at < seconds, islice(times, count)))


def interleaved(
    sessions: Iterator[Session], times: Sequence[float], live: int, seed: int
) -> list[Session]:
    """Return sessions of which each of `times` gets the next turn of one of `live`; one that is
    over makes place for another. So requests come at the very times, whatever the sessions'
    lengths.

    Whose turn it is is drawn among the half that has waited longest, so that answers have time to
    come. The same seed draws the same, whatever the server does. In the order of first times."""
    rng = Random(seed)
    begun: list[tuple[Session, list[float]]] = []  # with the times that its turns have got
    waiting: deque[tuple[Session, list[float]]] = deque()
    for time in times:
        if len(waiting) < live and (new := next(sessions, None)) is not None:
            begun.append((new, []))
            session, at = begun[-1]
        elif waiting:
            place = rng.randrange((len(waiting) + 1) // 2)
            session, at = waiting[place]
            del waiting[place]
        else:
            break  # there are no more sessions
        at.append(time)
        if len(at) < len(session.turns):
            waiting.append((session, at))
    return [replace(s, turns=s.turns[: len(at)], at=tuple(at)) for s, at in begun]
