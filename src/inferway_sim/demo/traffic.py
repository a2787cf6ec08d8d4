"""Conversations that go on after the phases: without them the page would have little to show."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from random import Random
from typing import Any

import aiohttp

from inferway.tasks import Tasks
from inferway_sim.demo.workload import SYSTEM_PROMPT, TURNS

USERS = 4
_MOST_TURNS = 6
_THINKING = (0.4, 2.4)  # seconds between an answer and the next question
_AGAIN_SECONDS = 2.0  # after a failure
_PREFIX = "demo-"
_TEAMS = ("search", "billing", "support")  # whose system prompts end otherwise
_log = logging.getLogger(__name__)


def is_of_traffic(request_id: str) -> bool:
    """Return whether a request is one of the demo's own, and not of a user who tries the server."""
    return request_id.startswith(_PREFIX)


class DemoTraffic:
    """A few users who chat with the gateway at `base` until `close`."""

    def __init__(self, http: aiohttp.ClientSession, base: str, model: str) -> None:
        self._http = http
        self._url = f"{base}/v1/chat/completions"
        self._model = model
        self._numbers = count()
        self._tickets = count(1)
        self._tasks = Tasks(_log, "a user of the demo stopped")

    def start(self) -> None:
        for number in range(USERS):
            self._tasks.spawn(self._chat_on(Random(number)))

    async def close(self) -> None:
        """Return when none of them asks any more."""
        await self._tasks.close()

    async def _chat_on(self, draw: Random) -> None:
        while True:
            try:
                await self._chat(draw)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _chat(self, draw: Random) -> None:
        """One conversation: each turn begins with all turns before it."""
        team = draw.choice(_TEAMS)
        system = f"{SYSTEM_PROMPT} You answer for the team that runs {team}."
        messages = [{"role": "system", "content": system}]
        # What a user says first tells conversations apart (telemetry.conversations).
        opening = f"Ticket {next(self._tickets)}. "
        for turn in range(draw.randint(2, _MOST_TURNS)):
            said = draw.choice(TURNS).text
            messages.append({"role": "user", "content": said if turn else opening + said})
            text = await self._ask(messages, draw.randint(16, 48))
            messages.append({"role": "assistant", "content": text})
            await asyncio.sleep(draw.uniform(*_THINKING))

    async def _ask(self, messages: list[dict[str, str]], max_tokens: int) -> str:
        """Stream an answer to its end. Of its text only its length matters here."""
        body: dict[str, Any] = {"model": self._model, "messages": messages, "stream": True}
        body |= {"max_tokens": max_tokens, "stream_options": {"include_usage": True}}
        headers = {"x-request-id": f"{_PREFIX}{next(self._numbers)}"}
        async with self._http.post(self._url, json=body, headers=headers) as response:
            await response.read()
        return "A simulated answer. " * (max_tokens // 8)
