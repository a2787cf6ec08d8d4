"""The sockets of one engine's event stream, or of one data-parallel rank of it.

The thin shell around `events.follower`: SUB (connected, or bound when the engine connects) for
live batches, a new DEALER for each replay, the SUB's monitor for links that come and go. The
follower's steps are done in order, one thing at a time, and others have the event loop every few
milliseconds. Replays wait for a slot, so that those of a thousand engines do not come at once.

A link may be another life of the engine. So what the monitor tells is heard before the messages
that came after it, and what waits in the socket when a link is up again is thrown away: it may be
of the life before, and a replay brings what is of this one. So is what is left of a link that has
gone. But who binds does not know whose link that was: there, a message says that another is up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from inferway.events.apply import EngineBlocks
from inferway.events.follower import EngineFollower, Steps
from inferway.events.stream import EventStream, Replay, StreamState
from inferway.events.wire import Batch
from inferway.fleet.discovery import EventSource
from inferway.fleet.journal.journal import HolderJournal
from inferway.index.protocol import Index, LastReport
from inferway.model import BlockKey, HolderId
from inferway.tasks import Tasks

log = logging.getLogger("inferway.events")

SLICE_SECONDS = 0.001  # how long the event loop is held before others get a turn
_END_SEQ = b"\xff" * 8  # -1: the replay's end marker
_HEARTBEAT_MS = 10_000
_UNFIT = (StreamState.BLIND, StreamState.STALE)  # others should rather read another's picture

REPLAYS_AT_ONCE = 4  # of all engines

OnBatch = Callable[[HolderId, Batch], None]


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """In seconds."""

    idle: float = 2.0  # between two answers
    total: float = 120.0
    retry: float = 0.2  # before another attempt, times the attempts before it
    slot: float = 0.3  # a slot is given back when no answer has come for so long


def sockets_context() -> zmq.asyncio.Context:
    """For as many sockets as ZeroMQ can have. The default is 1,023; a subscriber takes three."""
    context = zmq.asyncio.Context()
    context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))
    return context


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
        journal: HolderJournal | None = None,  # loaded first, written then, and closed with us
        limits: ReplayLimits | None = None,
        audit_seconds: float | None = 60.0,  # a silent stream is compared again this often
        answer_seconds: float = 10.0,  # an address that nobody is at by then is in the log
        clock: Callable[[], float] = time.monotonic,
        context: zmq.asyncio.Context | None = None,
        replays: asyncio.Semaphore | None = None,  # slots, shared with other subscribers
    ) -> None:
        self.source = source
        self.holder = holder
        on_record = journal.record if journal is not None else None
        self.blocks = EngineBlocks(
            holder, block_size, key_seed, holdings=index, on_record=on_record
        )
        self.follower = EngineFollower(
            self.blocks,
            can_replay=source.replay is not None,
            holdings=index,
            on_batch=partial(on_batch, holder) if on_batch is not None else None,
            on_batch_done=journal.batch_done if journal is not None else None,
            on_skip=self._warn,
        )
        self.stats = self.follower.stats
        self.last_batch_at: float | None = None  # by `clock`
        self.last_topic: str | None = None  # of the last message, whatever it was
        self._name = name or source.endpoint
        self._index = index
        self.journal = journal
        self.on_state: Callable[[], None] | None = None  # `state` is another now; fleet sets it
        self._told: tuple[StreamState, int | None] | None = None
        self._slots = replays or asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._limits = limits or ReplayLimits()
        self._audit_seconds = audit_seconds
        self._answer_seconds = answer_seconds
        self._clock = clock
        self._own_context = context is None
        self._context = context or sockets_context()
        self._socket: zmq.asyncio.Socket | None = None
        self._queue: zmq.Socket[bytes] | None = None  # the same, and its monitor, not to be
        self._monitor: zmq.Socket[bytes] | None = None  # awaited
        self._was_up = self._is_up = False
        self._tasks = Tasks(log, f"engine {self._name}: its event stream is no longer read")
        self._lock = asyncio.Lock()  # the stream says what to do in order; so it must be done
        self._replay: Replay | None = None  # the one that counts; replaced, not queued
        self._replay_wanted = asyncio.Event()
        self._turn_ends = 0.0  # by `clock`

    @property
    def stream(self) -> EventStream:
        return self.follower.stream

    @property
    def state(self) -> StreamState:
        return self.follower.state

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
        """Opens the socket, once the journal is loaded if there is one: what is published
        meanwhile the replay brings. One that cannot be opened is logged: the engine stays blind."""
        if self.journal is None:
            self._open()
        else:
            self._tasks.spawn(self._load(self.journal))

    async def _load(self, journal: HolderJournal) -> None:
        await journal.load(self.follower, self._index)
        self._tell()
        self._open()

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
        """Idempotent."""
        await self._tasks.close()
        if self.journal is not None:
            await self.journal.close()
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            self._socket = None
        if self._own_context:
            self._context.destroy(linger=0)

    def resync(self) -> None:
        """Compare with the engine now: it was away, or something does not add up."""
        if self._socket is not None:
            self._tasks.spawn(self._feed(self.follower.recheck))

    def count_no_copies(self) -> None:
        """As `EngineBlocks.count_no_copies`; the state may be another then."""
        if self.blocks.copies_count:
            self.blocks.count_no_copies()
            self._tell()

    async def adopt(self, hashes: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """As `EngineBlocks.adopt`, between two batches."""
        async with self._lock:
            for ops in self.blocks.adopt_in_steps(hashes, keys):
                self._index.apply(ops)
                if self._clock() >= self._turn_ends:
                    await self._breathe()

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
            if self._clock() >= self._turn_ends:
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
                await self._feed(partial(self.follower.replay_ended, complete))

    async def _read_replay(self, replay: Replay) -> bool:
        """Whether the end marker came. Stops when another replay takes its place."""
        assert self.source.replay is not None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)  # the engine drops what we do not take in time
        socket.setsockopt(zmq.IPV6, "[" in self.source.replay)
        slot = _Slot(self._slots)
        try:
            await slot.take()
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
            slot.give_back()
            socket.close(linger=0)
        return False

    async def _read_answers(self, replay: Replay, socket: zmq.asyncio.Socket, slot: _Slot) -> bool:
        """As `_read_replay`; raises TimeoutError."""
        now = asyncio.get_running_loop().time
        end = now() + self._limits.total
        if not await socket.poll(int(1000 * min(self._limits.slot, self._limits.idle))):
            slot.give_back()  # a socket that nobody answers on must not keep others waiting
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
        if self._clock() >= self._turn_ends:
            await self._breathe()

    async def _audit(self, seconds: float) -> None:
        """The last batch before a silence may have been lost, and nothing would tell."""
        checked: int | None = None
        while True:
            await asyncio.sleep(seconds)
            silent = self.last_batch_at is None or self._clock() - self.last_batch_at >= seconds
            if silent and self.state.is_settled and checked != self.stats.batches:
                checked = self.stats.batches
                await self._feed(self.follower.recheck)

    # what is done about it

    async def _feed(self, happened: Callable[[], Steps]) -> None:
        async with self._lock:
            batches, forgotten = self.stats.batches, self.stats.forgotten
            for step in happened():
                if isinstance(step, Replay):
                    self._replay = step
                    self._replay_wanted.set()
                    continue
                self._index.apply(step)
                if self._clock() >= self._turn_ends:
                    await self._breathe()
            if self.stats.batches != batches:
                self.last_batch_at = self._clock()
            if self.stats.forgotten != forgotten:
                log.info("engine %s: what the gateway believed of its cache is dropped", self._name)
            self._tell()

    def _tell(self) -> None:
        """The index, if something has changed; the fleet, if the state has."""
        stream = self.follower.stream
        state, seq = told = self.follower.state, stream.last_seq
        if told == self._told:
            return
        is_new_state = self._told is None or state is not self._told[0]
        self._told = told
        if self._index.shared is not None:
            digest = "" if stream.digest is None else stream.digest.hex()
            report = LastReport(state, seq, digest, fit=state not in _UNFIT)
            self._index.shared.tell(self.holder, report)
        if is_new_state and self.on_state is not None:
            self.on_state()

    async def _breathe(self) -> None:
        """When our turn has ended: reading what is there already never gives up the event loop by
        itself."""
        await asyncio.sleep(0)
        self._turn_ends = self._clock() + SLICE_SECONDS

    def _warn(self, reason: str, message: str) -> None:
        """Counted each time, in the log once."""
        log.warning(
            "engine %s sent what we cannot use (%s), skipped and counted from now on: %s",
            self._name,
            reason,
            message,
        )


class _Slot:
    """One of a semaphore's, taken once and given back once."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._taken = False

    async def take(self) -> None:
        await self._slots.acquire()
        self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            self._slots.release()
