"""An engine's events by ZeroMQ, as vLLM, SGLang and TensorRT-LLM publish them.

SUB (connected, or bound when the engine connects) for live batches, a new DEALER for each replay,
the SUB's monitor for links that come and go. Replays wait for a slot, so that those of a thousand
engines do not come at once.

A link may be another life of the engine. So what the monitor tells is heard before the messages
that came after it, and what waits in the socket when a link is up again is thrown away: it may be
of the life before, and a replay brings what is of this one. So is what is left of a link that has
gone. But who binds does not know whose link that was: there, a message says that another is up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from inferway.fleet.subscriber import EventSubscriber, Subscription, log
from inferway.kv.events.stream import Replay

_END_SEQ = b"\xff" * 8  # -1: the replay's end marker
_HEARTBEAT_MS = 10_000

REPLAYS_AT_ONCE = 4  # of all engines


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """Limits of a replay, in seconds."""

    idle: float = 2.0  # between two answers
    total: float = 120.0
    retry: float = 0.2  # before another attempt, times the attempts before it
    slot: float = 0.3  # a slot is given back when no answer has come for so long


def sockets_context() -> zmq.asyncio.Context:
    """Return a context for as many sockets as ZeroMQ can have. The default is 1,023; a subscriber
    takes three."""
    context = zmq.asyncio.Context()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
    return context


class ZmqSubscriber(EventSubscriber):
    """Reads one engine's ZeroMQ publisher, and its replay socket if it has one."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        limits: ReplayLimits | None = None,
        audit_seconds: float | None = 60.0,  # a silent stream is compared again this often
        answer_seconds: float = 10.0,  # an address that nobody is at by then is in the log
        clock: Callable[[], float] = time.monotonic,
        context: zmq.asyncio.Context | None = None,
        replays: asyncio.Semaphore | None = None,  # slots, shared with other subscribers
    ) -> None:
        super().__init__(subscription, clock=clock)
        self._slots = replays or asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._limits = limits or ReplayLimits()
        self._audit_seconds = audit_seconds
        self._answer_seconds = answer_seconds
        self._own_context = context is None
        self._context = context or sockets_context()
        self._socket: zmq.asyncio.Socket | None = None
        self._queue: zmq.Socket[bytes] | None = None  # the same, and its monitor, not to be
        self._monitor: zmq.Socket[bytes] | None = None  # awaited
        self._was_up = self._is_up = False
        self._replay: Replay | None = None  # the one that counts; replaced, not queued
        self._replay_wanted = asyncio.Event()

    @property
    def endpoint(self) -> str | None:
        """The address of the open socket: the real port, if we bound one that was free."""
        if self._socket is None:
            return None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def _is_open(self) -> bool:
        return self._socket is not None

    def _ask_for(self, replay: Replay) -> None:
        self._replay = replay
        self._replay_wanted.set()

    def _open(self) -> None:
        try:
            self._connect()
        except zmq.ZMQError as e:
            log.error(
                "engine %s: the gateway cannot %s %s, where its KV events come from: %s",
                self._name,
                "bind" if self.source.bind else "connect to",
                self.source.endpoint,
                e,
            )

    def _connect(self) -> None:
        """Raises ZMQError, also where this process may open no more files."""
        self._socket = socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # what is dropped here would have to be replayed
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
        socket.setsockopt(zmq.IPV6, "[" in self.source.endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        monitor = socket.get_monitor_socket(events)
        self._monitor, self._queue = zmq.Socket.shadow(monitor), zmq.Socket.shadow(socket)
        if self.source.bind:
            socket.bind(self.source.endpoint)
        else:
            socket.connect(self.source.endpoint)
        self._tasks.spawn(self._watch_link(monitor))
        self._tasks.spawn(self._miss_the_engine())
        self._tasks.spawn(self._read_live(socket))
        self._tasks.spawn(self._read_replays())
        if self._audit_seconds is not None and self.stream.can_replay:
            self._tasks.spawn(self._audit(self._audit_seconds))

    async def close(self) -> None:
        """Stop listening, and close the sockets. It may be called twice."""
        await super().close()
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            self._socket = None
        if self._own_context:
            self._context.destroy(linger=0)

    # what comes in

    async def _miss_the_engine(self) -> None:
        """Once: it is there, for it has told us the address, but not at that address."""
        await asyncio.sleep(self._answer_seconds)
        if not self._was_up:
            log.warning(
                "engine %s: nobody %s %s, where its KV events should come from; until somebody "
                "does nothing is known of its cache",
                self._name,
                "connects to" if self.source.bind else "answers at",
                self.source.endpoint,
            )

    async def _watch_link(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            await monitor.poll()
            await self._hear_of_link()

    async def _hear_of_link(self) -> bool:
        """What the monitor has told by now; whether the link is up again."""
        assert self._monitor is not None
        is_up_again = False
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            message = recv_monitor_message(self._monitor)
            self._is_up = message["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._is_up:
                if self._was_up:
                    is_up_again = True
                    self._drop_waiting()
                self._was_up = True
                await self._feed(self.follower.resume)
            else:
                async with self._lock:
                    self.follower.lost()
                    self._tell()
        return is_up_again

    def _drop_waiting(self) -> None:
        assert self._queue is not None
        with suppress(zmq.Again):
            while True:
                self._queue.recv_multipart(zmq.NOBLOCK)

    async def _read_live(self, socket: zmq.asyncio.Socket) -> None:
        assert self._queue is not None
        while True:
            try:  # and not awaited: else `_watch_link` may hear of a link while we hold a message
                frames = self._queue.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                await socket.poll()
                continue
            if await self._hear_of_link() or not (self._is_up or self.source.bind):
                continue
            self.last_topic = frames[0][:200].decode(errors="replace")
            if len(frames) != 3 or len(frames[1]) != 8:
                sizes = [len(frame) for frame in frames[:8]]
                self.follower.skip("frames", f"frames of {sizes} bytes; expected topic, 8, payload")
                continue
            seq, payload = int.from_bytes(frames[1], "big"), frames[2]
            await self._feed(partial(self.follower.live, seq, payload))
            if self._slice.is_over:
                await self._slice.rest()

    async def _read_replays(self) -> None:
        while True:
            await self._replay_wanted.wait()
            self._replay_wanted.clear()
            replay = self._replay
            if replay is None:
                continue
            if replay.attempt > 1:
                await asyncio.sleep(self._limits.retry * (replay.attempt - 1))
            if replay is not self._replay:
                continue
            complete = await self._read_replay(replay)
            if replay is self._replay:
                await self._feed(partial(self.follower.replay_ended, complete))

    async def _read_replay(self, replay: Replay) -> bool:
        """Return whether the end marker came. Stops when another replay takes its place."""
        assert self.source.replay is not None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)  # the engine drops what we do not take in time
        socket.setsockopt(zmq.IPV6, "[" in self.source.replay)
        slot = AsyncExitStack()
        try:
            await slot.enter_async_context(self._slots)
            if replay is not self._replay:
                return False
            socket.connect(self.source.replay)
            await socket.send_multipart([b"", replay.from_seq.to_bytes(8, "big")])
            return await self._read_answers(replay, socket, slot)
        except TimeoutError:
            log.debug("engine %s: its replay of %s has no end", self._name, replay)
        except zmq.ZMQError as e:
            self.follower.skip("replay", f"replay socket {self.source.replay}: {e}")
        finally:
            await slot.aclose()
            socket.close(linger=0)
        return False

    async def _read_answers(
        self, replay: Replay, socket: zmq.asyncio.Socket, slot: AsyncExitStack
    ) -> bool:
        """As `_read_replay`; raises TimeoutError."""
        now = asyncio.get_running_loop().time
        end = now() + self._limits.total
        if not await socket.poll(int(1000 * min(self._limits.slot, self._limits.idle))):
            await slot.aclose()  # a socket that nobody answers on must not keep others waiting
        while replay is self._replay:
            # around receiving only: a batch must not be left half applied
            async with asyncio.timeout_at(min(end, now() + self._limits.idle)):
                frames = await socket.recv_multipart()
            if len(frames) >= 2 and frames[-2] == _END_SEQ:
                return True
            await self._answer(replay, frames)
        return False

    async def _answer(self, replay: Replay, frames: list[bytes]) -> None:
        """b"", then a topic in newer engines; some libraries strip the first."""
        if not 2 <= len(frames) <= 5 or len(frames[-2]) != 8:
            self.follower.skip(
                "frames", f"a replay of {len(frames)} frames; expected topic, 8, payload"
            )
            return
        seq, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        await self._feed(
            lambda: self.follower.replayed(seq, payload) if replay is self._replay else iter(())
        )
        if self._slice.is_over:
            await self._slice.rest()

    async def _audit(self, seconds: float) -> None:
        """The last batch before a silence may have been lost, and nothing would tell."""
        checked: int | None = None
        while True:
            await asyncio.sleep(seconds)
            silent = self.last_batch_at is None or self._clock() - self.last_batch_at >= seconds
            if silent and self.state.is_settled and checked != self.stats.batches:
                checked = self.stats.batches
                await self._feed(self.follower.recheck)
