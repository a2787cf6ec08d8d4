"""How agents' frameworks make prompts that break caches. SEEN were there when what finds breakers
was made; HELD_OUT were not, and nothing has been changed for their sake."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from tests.console.records.agents import Chat, Framework
from tests.stored import conversations

NOW = "2024-05-15 15:00:00 EST"  # the time in the airline agent's own system prompt
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_FACTS = (
    *("prefers window seats", "is a gold member", "lives in Newark", "has two checked bags"),
    *("pays with a gift card", "travels with a dog", "dislikes early flights"),
    *("asked about a refund in May", "was called back on Monday", "needs a wheelchair"),
)


def _moment(draw: random.Random) -> datetime:
    begin = datetime(2026, 11, 27, tzinfo=UTC)
    return begin + timedelta(
        seconds=draw.randrange(20 * 86_400), microseconds=draw.randrange(10**6)
    )


def _word(draw: random.Random, length: int, letters: str = _LETTERS) -> str:
    return "".join(draw.choices(letters, k=length))


def _in_front(make: Callable[[random.Random], str]) -> Framework:
    return lambda draw, _, chat: chat.under(make(draw) + chat.system)


def _behind_title(make: Callable[[random.Random], str]) -> Framework:
    return lambda draw, _, chat: chat.under(chat.system.replace("\n\n", "\n\n" + make(draw), 1))


def _timed(form: str) -> Framework:
    return lambda draw, _, chat: chat.under(chat.system.replace(NOW, _moment(draw).strftime(form)))


def _replaced(old: str, make: Callable[[random.Random], str]) -> Framework:
    return lambda draw, _, chat: chat.under(chat.system.replace(old, make(draw), 1))


def _tools(make: Callable[[random.Random, list[Any]], list[Any]]) -> Framework:
    def framed(draw: random.Random, _: int, chat: Chat) -> Chat:
        return replace(chat, fields={**chat.fields, "tools": make(draw, chat.fields["tools"])})

    return framed


def _swapped(draw: random.Random, tools: list[Any]) -> list[Any]:
    one, other = draw.sample(range(len(tools)), 2)
    found = list(tools)
    found[one], found[other] = tools[other], tools[one]
    return found


def _rotated(draw: random.Random, tools: list[Any]) -> list[Any]:
    place = draw.randrange(len(tools))
    return tools[place:] + tools[:place]


def _keys(draw: random.Random, value: Any, depth: int = 99) -> Any:
    """The same JSON with its keys in another order, down to a depth."""
    if isinstance(value, dict) and depth:
        names = draw.sample(list(value), len(value))
        return {name: _keys(draw, value[name], depth - 1) for name in names}
    return [_keys(draw, each, depth) for each in value] if isinstance(value, list) else value


def keys_that_engines_sort(draw: random.Random, _: int, chat: Chat) -> Chat:
    """Those of a function itself: engines read them into a type, and write them in its order."""
    tools = [_keys(draw, tool, 2) for tool in chat.fields["tools"]]
    return replace(chat, fields={**chat.fields, "tools": tools})


def _properties(draw: random.Random, tools: list[Any]) -> list[Any]:
    found = json.loads(json.dumps(tools))
    for tool in found:
        parameters = tool["function"]["parameters"]
        parameters["properties"] = _keys(draw, parameters["properties"], 1)
    return list(found)


def _growing(form: Callable[[Sequence[str]], str]) -> Framework:
    """A list that all sessions share grows, in front of all."""
    requests = count(1)

    def framed(_: random.Random, __: int, chat: Chat) -> Chat:
        number = 1 + next(requests) // 3
        items = [f"{_FACTS[i % len(_FACTS)]} (noted {i} times)" for i in range(number)]
        return chat.under(form(items) + chat.system)

    return framed


def _own_memory(_: random.Random, turn: int, chat: Chat) -> Chat:
    """What is known of a user grows with each turn, behind the system prompt."""
    own = random.Random(chat.messages[1]["content"])
    known = [f"{own.choice(_FACTS)} since {own.randrange(1900, 2020)}" for _ in range(2 + turn)]
    lines = "".join(f"- The user {fact}\n" for fact in known)
    return chat.under(f"{chat.system}\n\n<core_memory>\n{lines}</core_memory>\nAnswer now.")


def _window(most: int, kept: int = 1) -> Framework:
    """The first `kept` messages and the last ones."""

    def framed(_: random.Random, __: int, chat: Chat) -> Chat:
        head, said = chat.messages[:kept], chat.messages[kept:]
        return replace(chat, messages=[*head, *said[max(0, len(said) - most) :]])

    return framed


def elided(most: int) -> Framework:
    """As SWE-agent does it: of all observations but the last ones a note is left."""

    def framed(_: random.Random, __: int, chat: Chat) -> Chat:
        said = list(chat.messages)
        seen = [i for i, each in enumerate(said) if each["role"] in ("user", "tool")][1:]
        for i in seen[: max(0, len(seen) - most)]:
            lines = said[i]["content"].count("\n") + 1
            note = f"Old environment output: ({lines} lines omitted)"
            said[i] = {**said[i], "content": note}
        return replace(chat, messages=said)

    return framed


def _argument(make: Callable[[random.Random], str]) -> Framework:
    return lambda draw, _, chat: replace(
        chat, fields={**chat.fields, "chat_template_kwargs": {"effort": make(draw)}}
    )


def _documents(draw: random.Random, _: int, chat: Chat) -> Chat:
    """What was found for all of them comes as it was scored."""
    texts = [row["messages"][1]["content"][:400] for row in conversations("mt_bench_101")[:8]]
    return chat.under("\n\n".join(draw.sample(texts, len(texts))) + "\n\n" + chat.system)


SEEN: dict[str, tuple[str, Framework]] = {
    "its own time": ("time", _timed("%Y-%m-%d %H:%M:%S EST")),
    "12 hours": ("time", _timed("%I:%M %p")),
    "ISO 8601": ("time", _in_front(lambda d: f"Current time: {_moment(d).isoformat()}\n")),
    "in words": (
        "time",
        _in_front(lambda d: _moment(d).strftime("Today is %A, %B %d, %Y, and it is %I:%M %p.\n")),
    ),
    "RFC 2822": ("time", _in_front(lambda d: _moment(d).strftime("Date: %a, %d %b %Y %T +0000\n"))),
    "ctime": ("time", _in_front(lambda d: _moment(d).strftime("%a %b %d %H:%M:%S %Y\n"))),
    "JavaScript": (
        "time",
        _in_front(lambda d: _moment(d).strftime("Now: %a %b %d %Y %T GMT+0000 (UTC)\n")),
    ),
    "ms": ("time", _in_front(lambda d: f"now_ms={int(_moment(d).timestamp() * 1000)}\n")),
    "compact": (
        "time",
        _in_front(lambda d: _moment(d).strftime("<env><time>%Y%m%dT%H%M%SZ</time></env>\n")),
    ),
    "UUID": ("id", _in_front(lambda d: f"Conversation: {uuid.UUID(int=d.getrandbits(128))}\n")),
    "trace": ("id", _in_front(lambda d: f"[trace {d.getrandbits(64):016x}]\n")),
    "ULID": ("id", _behind_title(lambda d: f"Request ID: 01J{_word(d, 23, _CROCKFORD)}\n\n")),
    "nanoid": ("id", _in_front(lambda d: f"session={_word(d, 21, _LETTERS + '_-')}\n")),
    "chatcmpl": ("id", _behind_title(lambda d: f"(run chatcmpl-{_word(d, 29)})\n")),
    "traceparent": (
        "id",
        _in_front(
            lambda d: f"traceparent: 00-{d.getrandbits(128):032x}-{d.getrandbits(64):016x}-01\n"
        ),
    ),
    "budget": ("number", _in_front(lambda d: f"Tokens left: {d.randrange(1_000, 200_000)}\n")),
    "any order": ("tool-order", _tools(lambda d, tools: d.sample(tools, len(tools)))),
    "rotated": ("tool-order", _tools(_rotated)),
    "two swapped": ("tool-order", _tools(_swapped)),
    "all keys": ("key-order", _tools(_keys)),
    "properties": ("key-order", _tools(_properties)),
    "bullets": (
        "growing-list",
        _growing(lambda each: "Known:\n" + "".join(f"- The user {one}\n" for one in each) + "\n"),
    ),
    "elements": (
        "growing-list",
        _growing(lambda each: "".join(f"<memory>The user {one}</memory>\n" for one in each)),
    ),
    "in a line": (
        "growing-list",
        _growing(lambda each: "Facts: " + ", ".join(f'"{one}"' for one in each) + "\n"),
    ),
    "own memory": ("growing-list", _own_memory),
    "last 10": ("shortened", _window(10)),
    "last 6": ("shortened", _window(6)),
    "blank lines": (
        "whitespace",
        _replaced("\n\n", lambda d: "\n" * d.randrange(2, 30) + " " * d.randrange(30)),
    ),
    "trailing": ("whitespace", _replaced(".\n", lambda d: "." + " " * d.randrange(1, 30) + "\n")),
    "effort": (
        "template-argument",
        _argument(lambda d: f"{d.choice(['low', 'high'])}, budget {d.randrange(100, 9_000)}"),
    ),
}

HELD_OUT: dict[str, tuple[str, Framework]] = {
    "two lines": (
        "time",
        _in_front(lambda d: _moment(d).strftime("Current date: %Y-%m-%d\nCurrent time: %T UTC\n")),
    ),
    "float": ("time", _in_front(lambda d: f"ts: {_moment(d).timestamp()}\n")),
    "behind": (
        "time",
        lambda d, _, chat: chat.under(chat.system + _moment(d).strftime("\n\nIt is %H:%M.")),
    ),
    "day": ("date", _in_front(lambda d: _moment(d).strftime("Today's date: %Y-%m-%d\n"))),
    "message": ("id", _in_front(lambda d: f"Message msg_01{_word(d, 22)}\n")),
    "commit": ("id", _behind_title(lambda d: f"HEAD is at {d.getrandbits(28):07x}.\n\n")),
    "pod": (
        "id",
        _in_front(lambda d: f"You run in worker-{d.getrandbits(40):010x}-{_word(d, 5)}.\n"),
    ),
    "JSON": (
        "id",
        _in_front(
            lambda d: json.dumps({"user": "u1", "trace_id": f"{d.getrandbits(96):x}"}) + "\n"
        ),
    ),
    "dollars": ("number", _in_front(lambda d: f"Spent: ${d.randrange(100, 90_000) / 100:.2f}.\n")),
    "a set": ("tool-order", _tools(lambda d, each: sorted(each, key=lambda _: d.random()))),
    "numbered": (
        "growing-list",
        _growing(lambda each: "".join(f"{i}. The user {one}\n" for i, one in enumerate(each, 1))),
    ),
    "JSON list": ("growing-list", _growing(lambda each: json.dumps({"known": list(each)}) + "\n")),
    "last 8": ("shortened", _window(8)),
    "first and last": ("shortened", _window(6, kept=2)),
    "tabs": ("whitespace", _replaced("\n\n- ", lambda d: "\n\n" + "\t" * d.randrange(40) + "- ")),
    "thinking": ("template-argument", _argument(lambda d: f"for {d.randrange(1, 600)} s")),
    "documents": ("order", _documents),
}
