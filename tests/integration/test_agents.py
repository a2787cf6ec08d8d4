"""Agents' conversations stay with the engine that has them, whichever way they are asked for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.integration.conftest import Fleet, StartFleet
from tests.integration.test_request_kinds import all_known

CONVERSATIONS, TURNS, ENGINES = 6, 6, 4
RULES = 100  # lines of a system prompt: about two thousand tokens
TOOL = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}


class Agent:
    """One conversation; what is sent grows with each turn, tool calls and thoughts among it."""

    def __init__(self, fleet: Fleet, number: int, path: str) -> None:
        self.engines: list[str] = []
        self._fleet = fleet
        self._path = path
        self._said: list[dict[str, Any]] = []
        rules = [f"Agent {number}, rule {i}: read before you write, and ask." for i in range(RULES)]
        self._system = "\n".join(rules)

    async def turn(self, number: int) -> None:
        """Sends all turns so far, and notes which engine has answered."""
        self._said.append(_user(f"Please look at file {number}, and say what is in it."))
        answer = await self._fleet.post(self._path, self._body())
        assert answer.status == 200, answer.body
        assert "x-inferway-reason" not in answer.headers
        self.engines.append(answer.engine)
        self._said += self._steps(_text_of(answer.body), number)

    @property
    def moves(self) -> int:
        return sum(a != b for a, b in zip(self.engines, self.engines[1:], strict=False))

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "smollm2", "max_tokens": 24}
        if self._path == "/v1/messages":
            header = f"x-anthropic-billing-header: cc_version=2.1; cch={len(self._said):05x};"
            blocks = [{"type": "text", "text": text} for text in (header, self._system)]
            return {**body, "system": blocks, "messages": self._said, "tools": [TOOL]}
        system = {"role": "system", "content": self._system}
        function = {
            "name": "read",
            "description": "Reads a file.",
            "parameters": {"type": "object"},
        }
        tools = [{"type": "function", "function": function}]
        return {**body, "messages": [system, *self._said], "tools": tools}

    def _steps(self, said: str, number: int) -> list[dict[str, Any]]:
        """What the assistant said, and a tool that it called."""
        name, output = f"call_{number}", f"The file {number} has no lines. " * 3
        if self._path == "/v1/messages":
            call = {"type": "tool_use", "id": name, "name": "read", "input": {"path": str(number)}}
            text = {"type": "text", "text": said}
            result = {"type": "tool_result", "tool_use_id": name, "content": output}
            return [{"role": "assistant", "content": [text, call]}, _user([result])]
        function = {"name": "read", "arguments": f'{{"path": "{number}"}}'}
        calls = [{"id": name, "type": "function", "function": function}]
        return [
            {"role": "assistant", "content": said, "tool_calls": calls},
            {"role": "tool", "tool_call_id": name, "content": output},
        ]


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _text_of(answer: dict[str, Any]) -> str:
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    return "".join(block["text"] for block in answer["content"])


async def cached_share(fleet: Fleet) -> float:
    """Of all prompt tokens, by the engines' own counters."""
    found = {"hits": 0.0, "queries": 0.0}
    for engine in fleet.engines:
        async with fleet.http.get(f"{engine.url}/metrics") as page:
            text = await page.text()
        for name in found:
            value = re.search(rf"^vllm:prefix_cache_{name}_total{{.*}} (\S+)$", text, re.MULTILINE)
            assert value is not None
            found[name] += float(value[1])
    return found["hits"] / found["queries"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_six_conversations_of_six_turns_are_answered_from_the_caches(
    start_fleet: StartFleet, path: str
) -> None:
    fleet = await start_fleet(ENGINES)
    agents = [Agent(fleet, number, path) for number in range(CONVERSATIONS)]

    for number in range(TURNS):
        await asyncio.gather(*(agent.turn(number) for agent in agents))
        await all_known(fleet)

    share, moves = await cached_share(fleet), sum(agent.moves for agent in agents)
    print(f"{path}: {share:.1%} of the prompt tokens from caches, {moves} of 30 turns moved")
    assert share >= 0.8
    assert moves == 0
    assert len({agent.engines[0] for agent in agents}) == ENGINES
