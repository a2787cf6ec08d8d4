"""Cache breakers are found in traffic by what they are, and innocent traffic has none."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.console.records.prompts import Traffic, system, user
from tests.stored import conversations

from inferway_console.records.breakers import LOOKS_A_SECOND, CacheBreakers

RULES = "\n".join(
    f"Rule {i}: {verb} what you were given, {i * 7} times if need be, and tell the user why."
    for i, verb in enumerate(
        ["read", "check", "sort", "keep", "doubt", "count", "weigh", "ask"] * 6
    )
)
ASKED = ["What is the capital of Peru?", "How do whales sleep?", "Sing of rust.", "Why is it dark?"]

Plant = Callable[[random.Random, int], tuple[list[dict[str, Any]], dict[str, Any]]]


def _tool(name: str, about: str = "Does what its name says") -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": f"Where {name} looks"},
        "limit": {"type": "integer", "description": "How many lines at most are returned"},
        "exact": {"type": "boolean", "description": "Whether case matters"},
        "encoding": {"type": "string"},
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{about}; it is called with the arguments below and fails loudly.",
            "parameters": {"type": "object", "properties": properties, "required": ["path"]},
        },
    }


TOOLS = [_tool(name) for name in ("read_file", "write_file", "search", "run_tests", "list_files")]


def _in_system(before: str) -> Plant:
    def plant(draw: random.Random, turn: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        text = before.format(
            time=f"{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}",
            date=f"2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}",
            day=f"{draw.choice(['March', 'June', 'October'])} {draw.randrange(1, 29)}, 2026",
            unix=1_790_000_000 + draw.randrange(9_000_000),
            uuid=uuid.UUID(int=draw.getrandbits(128)),
            hex=f"{draw.getrandbits(96):024x}",
            call="req_" + "".join(draw.choices("abcdefghkmnpqrstuvwxyz23456789", k=16)),
            number=draw.randrange(10, 9_000),
            blank=" " * draw.randrange(1, 40) + draw.choice(["", "\n", "\n\n"]),
            items="".join(f"\n- remembered: the user has {n} boxes" for n in range(turn % 12 + 1)),
            name="".join(draw.choices("aeioumnrst", k=6)).title(),
        )
        return [system(text + RULES), user(draw.choice(ASKED))], {}

    return plant


def _tool_order(draw: random.Random, _: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [user(draw.choice(ASKED))], {"tools": draw.sample(TOOLS, len(TOOLS))}


def _key_order(draw: random.Random, _: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    first, *others = TOOLS
    properties = dict(draw.sample(sorted(_properties(first).items()), 4))
    function = {**first["function"], "parameters": {"type": "object", "properties": properties}}
    return [user(draw.choice(ASKED))], {"tools": [{**first, "function": function}, *others]}


def _properties(tool: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tool["function"]["parameters"]["properties"]
    return found


def _argument(draw: random.Random, _: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    arguments = {"effort": f"for {draw.choice(ASKED)} {draw.randrange(9)}"}
    return [system(RULES), user(draw.choice(ASKED))], {"chat_template_kwargs": arguments}


def _shortened(_: random.Random, turn: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    said = [user(f"Message {i}: {ASKED[i % 4]} And {i * i} more of it, please.") for i in range(60)]
    return [system(RULES), *said[turn : turn + 30]], {}


PLANTED: list[tuple[str, Plant]] = [
    ("time", _in_system("It is {time} now.\n")),
    ("time", _in_system("Now: 2026-11-23T{time}Z. ")),
    ("time", _in_system("ts={unix}\n")),
    ("date", _in_system("Today is {date}.\n")),
    ("date", _in_system("The date is {day}.\n")),
    ("id", _in_system("Session {uuid}\n")),
    ("id", _in_system("trace: {hex}\n")),
    ("id", _in_system("Request {call} of a user.\n")),
    ("number", _in_system("You have {number} credits left.\n")),
    ("whitespace", _in_system("You are kind.{blank}")),
    ("growing-list", _in_system("Notes:{items}\n")),
    ("text", _in_system("You speak with {name}.\n")),
    ("tool-order", _tool_order),
    ("key-order", _key_order),
    ("template-argument", _argument),
    ("shortened", _shortened),
]


@pytest.fixture
def breakers() -> CacheBreakers:
    return CacheBreakers()


def _found(breakers: CacheBreakers, now: float) -> dict[str, int]:
    breakers.work()
    told: dict[str, int] = {}
    for each in breakers.told(now, limit=100)["breakers"]:
        told[each["kind"]] = told.get(each["kind"], 0) + each["requests"]
    return told


def _innocent(turns: int) -> Iterator[list[dict[str, Any]]]:
    """Conversations that grow, turn by turn."""
    for source in ("mt_bench_101", "oasst1_en_threads"):
        for row in conversations(source)[:turns]:
            said = row["messages"]
            for end in range(1, len(said) + 1, 2):
                yield said[:end]


@pytest.mark.parametrize(
    ("kind", "plant"), PLANTED, ids=[f"{k}-{i}" for i, (k, _) in enumerate(PLANTED)]
)
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_planted_breaker_is_named_among_innocent_traffic(
    breakers: CacheBreakers, kind: str, plant: Plant, seed: int
) -> None:
    traffic, draw = Traffic(breakers), random.Random(seed)
    innocent = _innocent(6)
    for turn in range(16):
        messages, fields = plant(draw, turn)
        traffic.chat(messages, **fields)
        other = next(innocent, None)
        if other is not None:
            traffic.chat(other)
        breakers.work()

    found = _found(breakers, traffic.now)

    assert set(found) == {kind}
    assert found[kind] >= 8


def _replay(breakers: CacheBreakers, source: str, most: int = 15) -> Traffic:
    """Sends real conversations, turn by turn."""
    traffic = Traffic(breakers)
    for row in conversations(source)[:most]:
        said = row["messages"]
        for end in range(2, min(len(said), 24) + 1, 2):
            traffic.chat(said[:end])
            breakers.work()
    return traffic


@pytest.mark.parametrize(
    "source", ["mt_bench_101", "oasst1_en_threads", "tau_bench_airline_gpt4o", "kdconv_zh"]
)
def test_real_conversations_have_none(breakers: CacheBreakers, source: str) -> None:
    traffic = _replay(breakers, source)

    assert _found(breakers, traffic.now) == {}


def test_of_an_agent_that_is_told_the_time_all_conversations_are_broken() -> None:
    breakers = CacheBreakers()
    traffic = Traffic(breakers)
    for minute, row in enumerate(conversations("tau_bench_airline_gpt4o")[:12]):
        told, *said = row["messages"]
        rules = told["content"].replace("15:00:00 EST", f"15:{minute:02}:07 EST")
        traffic.chat([{**told, "content": rules}, *said[:3]])
        breakers.work()

    [found] = breakers.told(traffic.now)["breakers"]

    assert (found["kind"], found["blocks"]) == ("time", [1, 3])
    assert found["requests"] == 11
    assert found["lost_tokens"] > 11 * 1_000
    assert "example" not in found


def test_what_an_engine_holds_is_not_lost(breakers: CacheBreakers) -> None:
    traffic, draw = Traffic(breakers), random.Random(7)
    for turn in range(12):
        messages, _ = _in_system("It is {time} now.\n")(draw, turn)
        traffic.chat(messages, held=1_000)
        breakers.work()

    assert _found(breakers, traffic.now) == {}


def test_prompts_with_other_salts_are_not_compared(breakers: CacheBreakers) -> None:
    traffic, draw = Traffic(breakers), random.Random(7)
    for turn in range(12):
        messages, _ = _in_system("It is {time} now.\n")(draw, turn)
        traffic.chat(messages, cache_salt=f"tenant {turn}")
        breakers.work()

    assert _found(breakers, traffic.now) == {}


def test_two_versions_of_a_prompt_are_no_breaker(breakers: CacheBreakers) -> None:
    traffic = Traffic(breakers)
    for turn in range(30):
        traffic.chat([system(f"Version {turn % 2}.\n{RULES}"), user(ASKED[turn % 4])])
        breakers.work()

    assert _found(breakers, traffic.now) == {}


def test_memory_is_bounded(breakers: CacheBreakers) -> None:
    breakers.max_bytes = 64 * 1024
    traffic, draw = Traffic(breakers), random.Random(7)
    for turn in range(60):
        messages, _ = _in_system("It is {uuid} now.\n")(draw, turn)
        traffic.chat(messages)
        breakers.work()

        assert breakers.num_bytes <= 64 * 1024

    assert set(_found(breakers, traffic.now)) == {"id"}


def test_only_so_many_are_looked_at_in_a_second_and_the_rest_is_counted() -> None:
    breakers = CacheBreakers()
    traffic = Traffic(breakers)
    routed = traffic.chat([system(RULES), user(ASKED[0])])

    for _ in range(100):
        breakers.on_request(routed, 0.0)
    breakers.work()

    assert (breakers.seen, breakers.looked_at) == (101, LOOKS_A_SECOND)


def test_what_there_is_no_time_for_is_let_go() -> None:
    breakers = CacheBreakers()
    traffic = Traffic(breakers)
    for turn in range(5):
        traffic.chat([system(f"{turn} {RULES}"), user(ASKED[0])])

    breakers.work(lambda: breakers.looked_at == 2)

    assert (breakers.seen, breakers.looked_at, breakers.has_work) == (5, 2, False)
