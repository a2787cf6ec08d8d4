"""Clients of many kinds. Each request's last message is a text that no other request has, and the
engines say it back."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from tests.soak.engines import MODEL
from tests.soak.judge import Heard, Tally
from tests.soak.waits import Yardstick

BOUND_SECONDS = 60.0  # an answer's end must come within this, even from an engine slowed down
SLOW_BOUND_SECONDS = 180.0
_TURNS = 6
_SMALL_BUFFER = 4096
_WORDS = (
    *("anchor", "basket", "candle", "dragon", "ember", "forest", "garden", "harbor", "island"),
    *("jungle", "kettle", "lantern", "meadow", "needle", "orchard", "pepper", "quarry", "ribbon"),
)
_PAUSE_SECONDS = 0.5  # of slow readers, now and then
_BACK_OFF_SECONDS = 0.3  # after an answer that was none
_CONTINUED = re.compile(rb": x-inferway-continued engine=(\S+)")


@dataclass
class Crowd:
    """What all clients share."""

    url: str
    tally: Tally
    session: aiohttp.ClientSession
    slow: aiohttp.ClientSession
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    number: itertools.count[int] = field(default_factory=itertools.count)
    open: int = 0
    begun: int = 0  # answers of which something has come, in `streaming_once`


@asynccontextmanager
async def crowd(url: str, tally: Tally) -> AsyncIterator[Crowd]:
    connector = aiohttp.TCPConnector(limit=0)
    narrow = aiohttp.TCPConnector(limit=0, socket_factory=_narrow_socket, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        aiohttp.ClientSession(
            connector=narrow, timeout=timeout, read_bufsize=_SMALL_BUFFER
        ) as slow,
    ):
        yield Crowd(url, tally, session, slow)


def _narrow_socket(address: Any) -> socket.socket:
    sock = socket.socket(family=address[0], type=address[1], proto=address[2])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    return sock


class Client:
    """One of the crowd, until it is told to stop."""

    def __init__(self, crowd: Crowd, seed: str, yardstick: Yardstick | None = None) -> None:
        """`yardstick`: gets what it waits for, and nothing is judged: it asks an engine."""
        self._crowd = crowd
        self._yardstick = yardstick
        self._rng = random.Random(seed)

    async def chatting(self) -> None:
        """Sessions that grow turn by turn, as streams or not."""
        while not self._crowd.stop.is_set():
            messages = [{"role": "system", "content": f"You are {self._text(80)}."}]
            for _ in range(_TURNS):
                said = self._said(5, 60)
                asked = [*messages, {"role": "user", "content": said}]
                if await self._ask("chat", said, {"messages": asked}):
                    messages = [*asked, {"role": "assistant", "content": said}]
                if self._crowd.stop.is_set():
                    return

    async def completing(self) -> None:
        """With a penalty, so that streams end with their engine: who says a prompt back cannot
        tell it from what another has said."""
        while not self._crowd.stop.is_set():
            said = self._said(5, 200)
            body = {"prompt": said, "max_tokens": 4000, "presence_penalty": 0.5}
            await self._ask("completion", said, body)

    async def leaving(self) -> None:
        """Goes away: at once, while it waits, or in the middle of a stream."""
        while not self._crowd.stop.is_set():
            said = self._said(50, 300)
            body = {"messages": [{"role": "user", "content": said}]}
            patience = self._rng.choice((0.0, 0.01, 0.05, 0.3, 1.0)) * self._rng.random()
            await self._ask("leaving", said, body, patience=patience)

    async def reading_slowly(self) -> None:
        """Streams and whole answers of thousands of words through a narrow socket."""
        while not self._crowd.stop.is_set():
            said = self._said(1000, 2000)
            body = {"messages": [{"role": "user", "content": said}]}
            await self._ask("slow", said, body)

    async def streaming_once(self) -> None:
        """A stream of some seconds."""
        said = self._said(300, 500)
        body = {"messages": [{"role": "user", "content": said}]}
        await self._ask("draining", said, body, stream=True)

    async def asking_for_nothing(self) -> None:
        """A model that nobody serves, asked for once: counted under a name of its own."""
        async with self._crowd.session.post(
            f"{self._crowd.url}/v1/chat/completions", json={"model": "unknown", "messages": []}
        ) as answer:
            await answer.read()

    async def _ask(
        self,
        kind: str,
        said: str,
        body: dict[str, Any],
        patience: float | None = None,
        stream: bool | None = None,
    ) -> bool:
        """Whether it was answered as a whole."""
        if stream is None:
            stream = self._rng.random() < 0.6
        request_id = said.split()[0]
        heard = Heard(said, request_id, kind, stream)
        bound = SLOW_BOUND_SECONDS if kind == "slow" else BOUND_SECONDS
        whole = {"model": MODEL, "temperature": 0, "stream": stream, **body}
        began = time.monotonic()
        self._crowd.open += 1
        try:
            async with asyncio.timeout(bound):
                await self._hear(heard, msgspec.json.encode(whole), patience)
        except TimeoutError:
            self._crowd.tally.add_stuck(kind, request_id, bound)
            return False
        finally:
            self._crowd.open -= 1
        heard.milliseconds = (time.monotonic() - began) * 1e3
        if self._yardstick is not None:
            for wait in heard.waited():
                self._yardstick.note(wait)
            return heard.status == 200
        is_whole = self._crowd.tally.add(heard)
        if not is_whole and not heard.left:
            await asyncio.sleep(_BACK_OFF_SECONDS)
        return is_whole

    async def _hear(self, heard: Heard, body: bytes, patience: float | None) -> None:
        if patience is None:
            await self._listen(heard, body)
            return
        listening = asyncio.create_task(self._listen(heard, body))
        done, _ = await asyncio.wait([listening], timeout=patience)
        if done:
            listening.result()
            return
        heard.left = True
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, heard: Heard, body: bytes) -> None:
        slow = heard.kind == "slow"
        session = self._crowd.slow if slow else self._crowd.session
        path = "/v1/completions" if heard.kind == "completion" else "/v1/chat/completions"
        headers = {"content-type": "application/json", "x-request-id": heard.request_id}
        try:
            with _listening(heard) as clock:
                async with session.post(
                    self._crowd.url + path, data=body, headers=headers
                ) as answer:
                    self._begins(heard, answer)
                    async for piece in answer.content.iter_any():
                        clock.hears(piece)
                        if slow and self._rng.random() < 0.02:
                            await asyncio.sleep(_PAUSE_SECONDS)
                            clock.goes_on()
        except (aiohttp.ClientError, OSError) as e:
            heard.broken = f"{type(e).__name__}: {e}"

    def _begins(self, heard: Heard, answer: aiohttp.ClientResponse) -> None:
        heard.status = answer.status
        heard.answered_id = answer.headers.get("x-request-id", "")
        heard.attempts = int(answer.headers.get("x-inferway-attempts", 1))
        if engine := answer.headers.get("x-inferway-engine"):
            heard.engines.append(engine)
        self._crowd.begun += heard.kind == "draining"

    def _said(self, least: int, most: int) -> str:
        nonce = f"n{next(self._crowd.number)}x{self._rng.randrange(10**9)}"
        return f"{nonce} {self._text(self._rng.randint(least, most))}"

    def _text(self, num_words: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=num_words))


class _Clock:
    """Notes what one client hears, and how long it waits for each event."""

    def __init__(self, heard: Heard) -> None:
        self.pieces: list[bytes] = []
        self._heard = heard
        self._since = time.time()

    def hears(self, piece: bytes) -> None:
        """A piece of the body, at once. A comment of a stream is no event."""
        self.pieces.append(piece)
        if not self._heard.stream:
            return
        if b"data:" in piece:
            self.note()
        if continued := _CONTINUED.search(piece):
            self._heard.engines.append(continued[1].decode())

    def goes_on(self) -> None:
        """It has not listened itself, until now."""
        self._since = time.time()

    def note(self) -> None:
        now = time.time()
        self._heard.waits.append((self._since, now - self._since))
        self._since = now


@contextmanager
def _listening(heard: Heard) -> Iterator[_Clock]:
    """However it ends, what was heard is kept, and the last wait."""
    clock = _Clock(heard)
    try:
        yield clock
    finally:
        clock.note()
        heard.body = b"".join(clock.pieces)
