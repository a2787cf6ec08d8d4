"""Agents' real sessions as their requests, one a turn, and how frameworks make prompts that break
caches of them. An engine that keeps every block says exactly what each request reuses, and what it
would have reused of the same chat if nothing broke it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tests.console.records.prompts import BLOCK, Messages, Traffic
from tests.stored import conversations

from inferway.model import BlockKey
from inferway_console.records.alignment import common_prefix
from inferway_console.records.breakers import CacheBreakers

SIDE_BY_SIDE = 4  # sessions
MOST_MESSAGES = 24  # of a session


@dataclass(frozen=True)
class Chat:
    """A request of an agent."""

    messages: Messages
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def system(self) -> str:
        text: str = self.messages[0]["content"]
        return text

    def under(self, system: str) -> Chat:
        """The same, with another system prompt."""
        return replace(self, messages=[{"role": "system", "content": system}, *self.messages[1:]])


# (random, number of the request in its session, the chat) -> as the framework sends it
Framework = Callable[[random.Random, int, Chat], Chat]


@dataclass
class Engine:
    """Keeps all blocks."""

    keys: set[BlockKey] = field(default_factory=set)

    def held(self, keys: Sequence[BlockKey]) -> int:
        """Blocks that it has of a prompt; and it has the others, from now on."""
        held = next((i for i, key in enumerate(keys) if key not in self.keys), len(keys))
        self.keys.update(keys)
        return held


@dataclass
class Agents:
    """Sends chats as a framework makes them. `lost` has what each of them computes anew, in
    tokens, and the same chat without the framework's doing would not have."""

    breakers: CacheBreakers
    lost: list[int] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    _engine: Engine = field(default_factory=Engine)
    _undisturbed: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        self._traffic = Traffic(self.breakers)

    def send(self, chat: Chat, undisturbed: Chat) -> None:
        body, prompt = self._traffic.prompt(chat.messages, **chat.fields)
        _, other = self._traffic.prompt(undisturbed.messages, **undisturbed.fields)
        held = self._engine.held(prompt.block_keys)
        could = self._undisturbed.held(other.block_keys) * BLOCK
        added = len(prompt.token_ids) - len(other.token_ids)
        at = common_prefix(prompt.token_ids, other.token_ids)  # it was added there
        held_of_added = min(max(held * BLOCK - at, 0), max(added, 0))
        self.lost.append(max(0, could + min(added, 0) - (held * BLOCK - held_of_added)))
        self._traffic.send(body, prompt, held)
        self.breakers.work()

    def replay(
        self, sessions: Sequence[Sequence[Chat]], framework: Framework, seed: int = 1
    ) -> None:
        """Send these sessions, some of them side by side."""
        draw = random.Random(seed)
        for turn, chat in in_turns(sessions):
            self.send(framework(draw, turn, chat), chat)
        self.told = self.breakers.told(self._traffic.now, limit=100)

    def requests(self) -> dict[str, int]:
        """Requests that are broken, by kind."""
        found: dict[str, int] = {}
        for each in self.told["breakers"]:
            found[each["kind"]] = found.get(each["kind"], 0) + each["requests"]
        return found

    @property
    def tokens_a_day(self) -> int:
        return sum(each["tokens_a_day"] for each in self.told["breakers"])

    @property
    def true_tokens_a_day(self) -> float:
        seconds: float = self.told["seconds"]
        return sum(self.lost) * 86_400 / seconds


def in_turns(sessions: Sequence[Sequence[Chat]]) -> Iterator[tuple[int, Chat]]:
    """Yield requests of SIDE_BY_SIDE sessions at a time, one of each in turn."""
    waiting = [iter(enumerate(session)) for session in sessions]
    running, waiting = waiting[:SIDE_BY_SIDE], waiting[SIDE_BY_SIDE:]
    while running:
        for session in list(running):
            following = next(session, None)
            if following is not None:
                yield following
                continue
            place = running.index(session)
            running[place : place + 1] = [waiting.pop(0)] if waiting else []


def sessions_of(
    source: str, part: slice, given: list[dict[str, Any]] | None = None
) -> list[list[Chat]]:
    """Real sessions, each as its requests: one for each message that the model has written.
    `given`: tools, in place of their own."""
    found = []
    for row in conversations(source)[part]:
        said = row["messages"]
        ends = [end for end, message in enumerate(said) if message["role"] == "assistant"]
        own = given or [_wrapped(tool) for tool in row.get("tools", ())]
        fields = {"tools": own} if own else {}
        found.append([Chat(said[:end], fields) for end in ends if 0 < end <= MOST_MESSAGES])
    return found


@cache
def tools(first: int, last: int) -> list[dict[str, Any]]:
    """Real tools' definitions of different names."""
    named: dict[str, dict[str, Any]] = {}
    for row in conversations("glaive_toolcall_en_zh"):
        for tool in row["tools"] if row["lang"] == "en" else []:
            named.setdefault(tool["name"], _wrapped(tool))
    return list(named.values())[first:last]


def _wrapped(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": tool}
