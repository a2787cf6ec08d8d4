"""An engine's events by ZeroMQ, as vLLM, SGLang and TensorRT-LLM publish them.

A connection of a SUB socket (connected, or accepted when the engine connects) for live batches, one
of a DEALER for each replay. Replays wait for a slot, so that those of a thousand engines do not
come at once.

A connection may be to another life of the engine. So one that is new asks for a replay, and what
another one has brought is not believed any more, though it has not been looked at yet. While
batches wait to be applied, the connection is not read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from inferway.fleet import zmtp
from inferway.fleet.subscriber import EventSubscriber, Subscription, log
from inferway.fleet.zmtp import ZmtpConnection, ZmtpError, encoded
from inferway.kv.events.event_applier import Steps
from inferway.kv.events.stream import Replay, StreamState
from inferway.loop_turns import LoopTurns

_END_SEQ = b"\xff" * 8  # -1: the replay's end marker

REPLAYS_AT_ONCE = 4  # of all engines


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """Limits of a replay, in seconds."""

    idle: float = 2.0  # until it is connected, and between two answers
    total: float = 120.0
    retry: float = 0.2  # before another attempt, times the attempts before it
    slot: float = 0.3  # a slot is given back when no answer has come for so long


class _ReplayAnswers(zmtp.Owner):
    """What comes by the connection of a replay: messages, and None when it has ended. The
    connection is not read while messages wait."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
        self._held: ZmtpConnection | None = None

    async def next(self) -> list[bytes] | None:
        if self._held is not None and self._queue.empty():
            self._held.release()
        return await self._queue.get()

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        for frames in messages:
            self._queue.put_nowait(frames)
        self._held = connection
        connection.hold()

    def disconnected(self, connection: ZmtpConnection) -> None:
        del connection
        self._queue.put_nowait(None)


class Published(Enum):
    """The result for a batch that a connection has published."""

    BELIEVED = auto()
    FROM_NOW_ON = auto()  # believed, and the connection is from now on
    IGNORED = auto()  # another connection is believed


class EventLinks:
    """The connections of one event source, and the `believed` one. No I/O.

    A socket that the gateway has connected has one connection at a time. To a socket that the
    gateway has bound, the engine may connect, a restarted engine while its former connection is not
    lost yet, and strangers. The newest connection that has published a batch is believed; a silent
    connection is believed only if no other one has published."""

    def __init__(self) -> None:
        self.believed: ZmtpConnection | None = None
        self.is_contested = False  # more than one connection publishes: one is not the engine's
        self._up: list[ZmtpConnection] = []  # the newest is last
        self._heard: list[ZmtpConnection] = []  # connections that have published

    def opened(self, connection: ZmtpConnection) -> bool:
        """Note that a connection is up. Return whether it is the believed one."""
        self._up.append(connection)
        if self.believed is None:
            self.believed = connection
        return self.believed is connection

    def published(self, connection: ZmtpConnection) -> Published:
        """Note that a connection has published a batch. Return what happens to the batch."""
        is_first = connection not in self._heard
        if is_first:
            self._heard.append(connection)
        if connection is self.believed:
            return Published.BELIEVED
        if is_first and self._goes_before(connection, self.believed):
            self.believed = connection
            return Published.FROM_NOW_ON
        self.is_contested = True
        return Published.IGNORED

    def closed(self, connection: ZmtpConnection) -> None:
        """Note that a connection has ended. If it was the believed one, another connection that is
        up takes its place, one that has published before silent ones."""
        self._up = [each for each in self._up if each is not connection]
        self._heard = [each for each in self._heard if each is not connection]
        self.is_contested = self.is_contested and len(self._heard) > 1
        if self.believed is connection:
            left = [each for each in self._up if each in self._heard] or self._up
            self.believed = left[-1] if left else None

    def _goes_before(self, one: ZmtpConnection, other: ZmtpConnection | None) -> bool:
        if other is None or other not in self._heard:
            return True
        return self._up.index(one) > self._up.index(other)


class ZmqSubscriber(EventSubscriber, zmtp.Owner):
    """Reads one engine's ZeroMQ publisher, and its replay socket if it has one."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        limits: ReplayLimits | None = None,
        audit_seconds: float | None = 60.0,  # a silent stream is compared again this often
        answer_seconds: float = 10.0,  # an address that nobody is at by then is in the log
        clock: Callable[[], float] = time.monotonic,
        replays: asyncio.Semaphore | None = None,  # slots, shared with other subscribers
        turns: LoopTurns | None = None,  # the same
    ) -> None:
        super().__init__(subscription, clock=clock)
        self._slots = replays or asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._turns = turns or LoopTurns()
        self._limits = limits or ReplayLimits()
        self._audit_seconds = audit_seconds
        self._answer_seconds = answer_seconds
        self._endpoint: str | None = None  # of the open source
        self._links = EventLinks()
        self._was_up = False
        self._fault: str | None = None  # of the last peer that was refused
        self._replay: Replay | None = None  # the one that counts; replaced, not queued
        self._replay_wanted = asyncio.Event()

    @property
    def endpoint(self) -> str | None:
        """The address of the open source: the real port, if we bound one that was free."""
        return self._endpoint

    @property
    def state(self) -> StreamState:
        """The follower's state, or STALE while several connections publish as this engine, because
        one of them is not the engine's."""
        state = super().state
        return StreamState.STALE if self._links.is_contested and state.is_settled else state

    @property
    def _is_open(self) -> bool:
        return self._endpoint is not None

    def _connection(self) -> ZmtpConnection:
        return ZmtpConnection("SUB", self, turns=self._turns)

    def _ask_for(self, replay: Replay) -> None:
        self._replay = replay
        self._replay_wanted.set()

    def _open(self) -> None:
        source = self.source
        try:
            if source.bind:
                listening = zmtp.bound(source.endpoint)
                self._endpoint = zmtp.endpoint_of(listening)
                self._tasks.spawn(zmtp.accept(listening, self._connection))
            else:
                zmtp.check_endpoint(source.endpoint)
                self._endpoint = source.endpoint
                self._tasks.spawn(zmtp.keep_connected(source.endpoint, self, self._connection))
        except (OSError, ValueError) as e:
            log.error(
                "engine %s: the gateway cannot %s %s, where its KV events come from: %s",
                self._name,
                "bind" if source.bind else "connect to",
                source.endpoint,
                e,
            )
            return
        self._tasks.spawn(self._miss_the_engine())
        self._tasks.spawn(self._read_replays())
        if self._audit_seconds is not None and self.stream.can_replay:
            self._tasks.spawn(self._audit(self._audit_seconds))

    async def close(self) -> None:
        """Stop listening, and close the connections. It may be called twice."""
        self._endpoint = None
        await super().close()

    # what comes in

    async def _miss_the_engine(self) -> None:
        """Once: it is there, for it has told us the address, but not at that address."""
        await asyncio.sleep(self._answer_seconds)
        if self._was_up or self._fault is not None:
            return  # that is told already
        log.warning(
            "engine %s: nobody %s %s, where its KV events should come from; until somebody "
            "does nothing is known of its cache",
            self._name,
            "connects to" if self.source.bind else "answers at",
            self.source.endpoint,
        )

    def connected(self, connection: ZmtpConnection) -> None:
        """Ask what is so by now: another life of the engine may be there."""
        self._was_up = True
        if self._links.opened(connection):
            self._feed(self.follower.resume)
        else:
            self._check_again()

    def _check_again(self) -> None:
        """Compare the picture with the engine by a replay, if the engine has one: the engine may
        have been restarted, or another connection has published."""
        if self.stream.can_replay:
            self._feed(self.follower.recheck)
        else:
            self._tell()

    def refused(self, fault: str) -> None:
        """Say why what is there cannot be read, or no longer, if that is new."""
        if fault == self._fault:
            return
        self._fault = fault
        log.warning(
            "engine %s: its KV events cannot be read at %s: %s",
            self._name,
            self.source.endpoint,
            fault,
        )

    def disconnected(self, connection: ZmtpConnection) -> None:
        """Take what is believed for stale, if it came by this connection."""
        links = self._links
        believed, was_contested = links.believed, links.is_contested
        links.closed(connection)
        if not self._is_open:
            return
        if links.believed is None:
            self._feed(self._lose)
        elif links.believed is not believed:
            self._feed(self.follower.resume)
        elif was_contested and not links.is_contested:
            self._check_again()

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        """Take batches that the engine has just published."""
        batches = [
            partial(self._live, connection, int.from_bytes(frames[1], "big"), frames[2])
            for frames in messages
            if len(frames) == 3 and len(frames[1]) == 8
        ]
        if batches:
            self._heard_from(connection)
        if connection is not self._links.believed:
            return
        if len(batches) != len(messages):
            self._skip_others(messages)
        self.last_topic = messages[-1][0][:200].decode(errors="replace")
        self._feed(*batches)
        if self._is_busy:
            self._held.append(connection)
            connection.hold()

    def _heard_from(self, connection: ZmtpConnection) -> None:
        """Note that the connection has published batches."""
        links = self._links
        was_contested = links.is_contested
        if links.published(connection) is Published.FROM_NOW_ON:
            self._feed(self.follower.resume)
        if links.is_contested and not was_contested:
            log.warning(
                "engine %s: several connections publish KV events at %s as this engine; the "
                "picture of its cache counts as stale until one is left: let only the engine "
                "reach the port",
                *(self._name, self.endpoint),
            )
            self._tell()

    def _skip_others(self, messages: list[list[bytes]]) -> None:
        """Count the messages that are no batches."""
        for frames in messages:
            if len(frames) != 3 or len(frames[1]) != 8:
                sizes = [len(frame) for frame in frames[:8]]
                self.follower.skip("frames", f"frames of {sizes} bytes; expected topic, 8, payload")

    def _live(self, connection: ZmtpConnection, seq: int, payload: bytes) -> Steps:
        if connection is not self._links.believed:
            return iter(())
        return self.follower.live(seq, payload)

    # replays

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
                self._feed(partial(self.follower.replay_ended, complete))

    async def _read_replay(self, replay: Replay) -> bool:
        """Return whether the end marker came. Stops when another replay takes its place."""
        endpoint, answers = self.source.replay, _ReplayAnswers()
        assert endpoint is not None
        connection: ZmtpConnection | None = None
        slot = _Slot(self._slots)
        try:
            await slot.take()
            if replay is not self._replay:
                return False
            slot.give_back_in(min(self._limits.slot, self._limits.idle))
            async with asyncio.timeout(self._limits.idle):
                connection = await self._connected(endpoint, answers)
            connection.send(encoded([b"", replay.from_seq.to_bytes(8, "big")]))
            return await self._read_answers(replay, answers, slot)
        except OSError as e:  # it took too long as well
            log.debug("engine %s: its replay of %s has no end: %s", self._name, replay, e)
        except (ZmtpError, ValueError) as e:
            self.follower.skip("replay", f"replay socket {endpoint}: {e}")
        finally:
            slot.give_back()
            if connection is not None:
                connection.close()
        return False

    async def _connected(self, endpoint: str, answers: _ReplayAnswers) -> ZmtpConnection:
        """An engine that has just started may not listen yet. Raises as `zmtp.connect` does."""
        while True:
            connection = ZmtpConnection("DEALER", answers, turns=self._turns)
            with suppress(ConnectionRefusedError):
                await zmtp.connect(endpoint, connection)
                return connection
            await asyncio.sleep(self._limits.retry)

    async def _read_answers(self, replay: Replay, answers: _ReplayAnswers, slot: _Slot) -> bool:
        """As `_read_replay`; raises TimeoutError."""
        now = asyncio.get_running_loop().time
        end = now() + self._limits.total
        while replay is self._replay:
            async with asyncio.timeout_at(min(end, now() + self._limits.idle)):
                frames = await answers.next()
            if frames is None:
                return False
            slot.keep()
            if len(frames) >= 2 and frames[-2] == _END_SEQ:
                return True
            self._answer(replay, frames)
            await self._idle.wait()
        return False

    def _answer(self, replay: Replay, frames: list[bytes]) -> None:
        """b"", then a topic in newer engines; some libraries strip the first."""
        if not 2 <= len(frames) <= 5 or len(frames[-2]) != 8:
            self.follower.skip(
                "frames", f"a replay of {len(frames)} frames; expected topic, 8, payload"
            )
            return
        seq, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        self._feed(
            lambda: self.follower.replayed(seq, payload) if replay is self._replay else iter(())
        )

    async def _audit(self, seconds: float) -> None:
        """The last batch before a silence may have been lost, and nothing would tell."""
        checked: int | None = None
        while True:
            await asyncio.sleep(seconds)
            silent = self.last_batch_at is None or self._clock() - self.last_batch_at >= seconds
            if silent and self.state.is_settled and checked != self.stats.batches:
                checked = self.stats.batches
                self._feed(self.follower.recheck)


class _Slot:
    """One of a few that replays take. A socket that nobody answers on must not keep others
    waiting: then it is given back early."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_taken = False
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        await self._slots.acquire()
        self._is_taken = True

    def give_back_in(self, seconds: float) -> None:
        """Give it back then, unless it is kept before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.give_back)

    def keep(self) -> None:
        """Do not give it back early."""
        if self._timer is not None:
            self._timer.cancel()

    def give_back(self) -> None:
        """Give it back; only the first call counts."""
        self.keep()
        if self._is_taken:
            self._is_taken = False
            self._slots.release()
