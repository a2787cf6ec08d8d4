"""Cache breakers in agents' real sessions: none where there is none, and what frameworks break is
named and its cost counted, within TOLERANCE of what an engine that keeps all blocks computes
anew."""

from __future__ import annotations

import pytest
from tests.console.records.agents import Agents, Chat, Framework, sessions_of, tools
from tests.console.records.frameworks import HELD_OUT, SEEN, elided, keys_that_engines_sort

from inferway_console.records.breakers import LEAST_LOST, CacheBreakers

AIRLINE, CODE = "tau_bench_airline_gpt4o", "swe_agent_demos"
TOLERANCE = 0.15
RECALL, RIGHT = 0.8, 0.9  # of the requests that are broken; of those that are found


def as_it_is(_: object, __: int, chat: Chat) -> Chat:
    return chat


@pytest.mark.parametrize(
    ("source", "rows", "prompts"),
    [(AIRLINE, 24, 253), ("glaive_toolcall_en_zh", 160, 225), ("oasst1_en_threads", 120, 44)],
)
def test_real_sessions_have_none(source: str, rows: int, prompts: int) -> None:
    agents = Agents(CacheBreakers())
    given = tools(0, 10) if source == AIRLINE else None

    agents.replay(sessions_of(source, slice(rows), given), as_it_is)

    assert agents.requests() == {}
    assert agents.breakers.looked_at == prompts


def test_versions_of_a_real_agents_rules_are_found_with_what_they_differ_by() -> None:
    """SWE-agent's demonstrations are of several versions of it: the format of the flag is named in
    the 43rd token, and thousands of tokens that they share stand behind it."""
    agents = Agents(CacheBreakers(keeps_text=True))

    agents.replay(sessions_of(CODE, slice(15)), as_it_is)

    places = {
        each["first_token"]: (each["kind"], each["example"]["here"])
        for each in agents.told["breakers"]
    }
    kind, text = places[42]
    assert kind == "text"
    assert "The flag format for this CTF is" in text
    assert all(first < 700 for first in places)  # in their rules, not in what was said


def test_keys_that_engines_sort_break_nothing() -> None:
    agents = Agents(CacheBreakers())

    sessions = sessions_of(AIRLINE, slice(4), tools(0, 10))
    agents.replay(sessions, keys_that_engines_sort)

    assert sum(agents.lost) == 0
    assert agents.requests() == {}


def _framed(kind: str, framework: Framework, first: int, first_tool: int) -> Agents:
    has_tools = kind in ("tool-order", "key-order")
    part = slice(first, first + (6 if kind == "shortened" else 4))
    given = tools(first_tool, first_tool + 12) if has_tools else None
    agents = Agents(CacheBreakers())
    agents.replay(sessions_of(AIRLINE, part, given), framework)
    return agents


def _assert_found(agents: Agents, kind: str) -> None:
    found, broken = agents.requests(), sum(lost >= LEAST_LOST for lost in agents.lost)

    assert broken > 15
    assert found[kind] >= RECALL * broken
    assert found[kind] >= RIGHT * sum(found.values())
    assert sum(found.values()) <= 1.1 * broken
    assert agents.tokens_a_day == pytest.approx(agents.true_tokens_a_day, rel=TOLERANCE)


@pytest.mark.parametrize("name", SEEN)
def test_what_a_framework_breaks_is_named_and_counted(name: str) -> None:
    kind, framework = SEEN[name]

    _assert_found(_framed(kind, framework, 100, 0), kind)


@pytest.mark.parametrize("name", HELD_OUT)
def test_so_is_what_was_held_out_in_other_sessions_and_with_other_tools(name: str) -> None:
    kind, framework = HELD_OUT[name]

    _assert_found(_framed(kind, framework, 60, 40), kind)


def test_notes_in_the_place_of_old_observations_are_found() -> None:
    """As SWE-agent shortens what it has seen: long observations, of which a note is left."""
    agents = Agents(CacheBreakers())

    agents.replay(sessions_of(CODE, slice(8, 15)), elided(4))

    assert agents.requests()["shortened"] >= 20
    assert agents.tokens_a_day == pytest.approx(agents.true_tokens_a_day, rel=TOLERANCE)
