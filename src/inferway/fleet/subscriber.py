"""The sockets of one engine's event stream, or of one data-parallel rank of it.

Does what `events.stream` asks: SUB (connected, or bound when the engine connects) for live
batches, a new DEALER for each replay, the SUB's monitor for links that come and go. What it
applies, it applies in the order in which the stream says, one thing at a time, and lets others
have the event loop every few milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from inferway.events.apply import EngineBlocks
from inferway.events.stream import Action, Apply, EventStream, Forget, Replay, StreamState
from inferway.events.wire import Batch, Event, EventError, decode_event, open_batch
from inferway.fleet.discovery import EventSource
from inferway.index.protocol import Index
from inferway.model import HolderId

log = logging.getLogger("inferway.events")

SLICE_SECONDS = 0.002  # how long the event loop is held before others get a turn
_END_SEQ = b"\xff" * 8  # -1: the replay's end marker
_HEARTBEAT_MS = 10_000

OnBatch = Callable[[HolderId, Batch], None]


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """In seconds."""

    idle: float = 2.0  # between two answers
    total: float = 120.0
    retry: float = 0.2  # before another attempt, times the attempts before it


@dataclass(slots=True)
class SubscriberStats:
    """Plain integers, read when somebody scrapes; more in `stream.stats`, `blocks.stats`."""

    batches: int = 0
    events: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # messages and events, by reason


class EventSubscriber:
    """Keeps `index` true for one holder. `start` on the event loop, `close` at the end.

    `close` leaves what the index believes; who removes the engine clears its holder.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        holder: HolderId,
        block_size: int,
        index: Index,
        name: str | None = None,  # for the log: which engine
        key_seed: int = 0,
        on_batch: OnBatch | None = None,
        limits: ReplayLimits | None = None,
        audit_seconds: float | None = 60.0,  # a silent stream is compared again this often
        clock: Callable[[], float] = time.monotonic,
        context: zmq.asyncio.Context | None = None,
    ) -> None:
        self.source = source
        self.holder = holder
        self.blocks = EngineBlocks(holder, block_size, key_seed, holdings=index.holdings)
        self.stream = EventStream(can_replay=source.replay is not None)
        self.stats = SubscriberStats()
        self.last_batch_at: float | None = None  # by `clock`
        self.last_topic: str | None = None  # of the last message, whatever it was
        self._name = name or source.endpoint
        self._index = index
        self._on_batch = on_batch
        self._limits = limits or ReplayLimits()
        self._audit_seconds = audit_seconds
        self._clock = clock
        self._own_context = context is None
        self._context = context or zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()  # the stream says what to do in order; so it must be done
        self._replay: Replay | None = None  # the one that counts; replaced, not queued
        self._replay_wanted = asyncio.Event()
        self._slice_began = 0.0

    @property
    def state(self) -> StreamState:
        return self.stream.state

    @property
    def endpoint(self) -> str | None:
        """Where the open socket is: the real port, if we bound one that was free."""
        if self._socket is None:
            return None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def block_size_seen(self) -> int | None:
        """What the engine's last event said; None before the first."""
        return self.blocks.block_size_seen

    def start(self) -> None:
        """Opens the socket. One that cannot be opened is logged: the engine stays blind."""
        self._socket = socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # what is dropped here would have to be replayed
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
        socket.setsockopt(zmq.IPV6, "[" in self.source.endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            if self.source.bind:
                socket.bind(self.source.endpoint)
            else:
                socket.connect(self.source.endpoint)
        except zmq.ZMQError as e:
            verb = "bind" if self.source.bind else "connect to"
            log.error("engine %s: cannot %s %s: %s", self._name, verb, self.source.endpoint, e)
            return
        self._spawn(self._watch_link(monitor))
        self._spawn(self._read_live(socket))
        self._spawn(self._read_replays())
        if self._audit_seconds is not None and self.stream.can_replay:
            self._spawn(self._audit(self._audit_seconds))

    async def close(self) -> None:
        """Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            self._socket = None
        if self._own_context:
            self._context.destroy(linger=0)

    def resync(self) -> None:
        """Compare with the engine now: it was away, or something does not add up."""
        if self._socket is not None:
            self._spawn(self._feed(self.stream.resume))

    # what comes in

    async def _watch_link(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            message = await recv_monitor_message(monitor)
            if message["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                await self._feed(self.stream.resume)
            else:
                async with self._lock:
                    self.stream.lost()

    async def _read_live(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            self.last_topic = frames[0][:200].decode(errors="replace")
            if len(frames) != 3 or len(frames[1]) != 8:
                sizes = [len(frame) for frame in frames[:8]]
                self._skip("frames", f"frames of {sizes} bytes; expected topic, 8, payload")
                continue
            seq, payload = int.from_bytes(frames[1], "big"), frames[2]
            await self._feed(partial(self.stream.live, seq, payload))
            await self._breathe()

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
                await self._feed(partial(self.stream.replay_ended, complete))

    async def _read_replay(self, replay: Replay) -> bool:
        """Whether the end marker came. Stops when another replay takes its place."""
        assert self.source.replay is not None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)  # the engine drops what we do not take in time
        socket.setsockopt(zmq.IPV6, "[" in self.source.replay)
        try:
            socket.connect(self.source.replay)
            await socket.send_multipart([b"", replay.from_seq.to_bytes(8, "big")])
            return await self._read_answers(replay, socket)
        except TimeoutError:
            log.debug("engine %s: its replay of %s has no end", self._name, replay)
        except zmq.ZMQError as e:
            self._skip("replay", f"replay socket {self.source.replay}: {e}")
        finally:
            socket.close(linger=0)
        return False

    async def _read_answers(self, replay: Replay, socket: zmq.asyncio.Socket) -> bool:
        """As `_read_replay`; raises TimeoutError."""
        now = asyncio.get_running_loop().time
        end = now() + self._limits.total
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
            self._skip("frames", f"a replay of {len(frames)} frames; expected topic, 8, payload")
            return
        seq, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        await self._feed(
            lambda: self.stream.replayed(seq, payload) if replay is self._replay else []
        )
        await self._breathe()

    async def _audit(self, seconds: float) -> None:
        """The last batch before a silence may have been lost, and nothing would tell."""
        checked: int | None = None
        while True:
            await asyncio.sleep(seconds)
            silent = self.last_batch_at is None or self._clock() - self.last_batch_at >= seconds
            settled = self.state in (StreamState.EXACT, StreamState.PARTIAL)
            if silent and settled and checked != self.stats.batches:
                checked = self.stats.batches
                await self._feed(self.stream.resume)

    # what is done about it

    async def _feed(self, step: Callable[[], list[Action]]) -> None:
        async with self._lock:
            for action in step():
                match action:
                    case Apply(payload):
                        await self._apply(payload)
                    case Forget():
                        log.info("engine %s: what we believed of its cache is dropped", self._name)
                        self._index.apply(self.blocks.forget())
                    case Replay():
                        self._replay = action
                        self._replay_wanted.set()

    async def _apply(self, payload: bytes) -> None:
        self.last_batch_at = self._clock()
        self.stats.batches += 1
        raw = open_batch(payload)
        if isinstance(raw, EventError):
            self._skip(raw.reason, raw.message)
            return
        events: list[Event] = []
        errors: list[EventError] = []
        for place, raw_event in enumerate(raw.events):
            event = decode_event(raw_event, place)
            if isinstance(event, EventError):
                errors.append(event)
                self._skip(event.reason, event.message)
                continue
            events.append(event)
            self._index.apply(self.blocks.apply(event))
            await self._breathe()
        self.stats.events += len(events)
        if self._on_batch is not None:
            self._on_batch(self.holder, Batch(raw.ts, events, raw.rank, errors))

    async def _breathe(self) -> None:
        """Reading what is there already never gives up the event loop by itself."""
        if self._clock() - self._slice_began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._slice_began = self._clock()

    def _skip(self, reason: str, message: str) -> None:
        """Counted each time, in the log once."""
        if reason not in self.stats.skipped:
            log.warning(
                "engine %s sent what we cannot use (%s), skipped and counted from now on: %s",
                self._name,
                reason,
                message,
            )
        self.stats.skipped[reason] = self.stats.skipped.get(reason, 0) + 1

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("engine %s: its event stream is no longer read", self._name, exc_info=error)
