"""Engines, a network of ill will and a gateway, in virtual time.

What the network may do is what TCP and ZMQ may do, and more: live messages are lost, doubled,
late (behind younger ones) or corrupt; replays lose what comes after a full queue, and their end.
What it may not do, because the shell around the follower (`fleet.subscriber`) sees to it: bring
a message of a former life after the new life's link was told to be up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
from tests.chaos.engine import ADAPTER, Features, Prompt, TrueEngine
from tests.chaos.faults import corrupt, spoilt
from tests.kv.snapshots import encoded, result

from inferway.fleet.fleet import FullReporter
from inferway.kv.blocks.extra_keys import request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.event_applier import EventApplier, Step, Steps
from inferway.kv.events.holder_snapshot import SavedHolder
from inferway.kv.events.stream import Replay, StreamState, digest_of
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index
from inferway.model import BlockKey


@dataclass(frozen=True, slots=True)
class Troubles:
    """Shares of messages or of turns, 0..1; and what kind of place it is."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    corrupt: float = 0.0  # on the way: a replay may bring it whole
    spoilt: float = 0.0  # by the engine: a replay brings the same
    holes: float = 0.0  # of what a replay sends beyond its full queue; and its end marker
    restart: float = 0.0  # of the engine, seen by the link
    silent_restart: float = 0.0  # behind something that keeps the link
    link: float = 0.0  # lost for a while
    gateway: float = 0.0  # it restarts with nothing
    snapshot: float = 0.0  # it restarts with a snapshot that was taken a little before
    dead_replay: float = 0.0  # the socket answers nobody for a while
    freeze: float = 0.0  # the engine does nothing for a while, and keeps its connections
    blackhole: float = 0.0  # nothing reaches the gateway for a while, and nothing is reset
    clear: float = 0.0
    report: float = 0.0  # requests that make the engine report what it found: see `World`
    adopt: float = 0.0
    audit: float = 0.0
    can_replay: bool = True
    replay_lives: bool = True  # False: the socket is there and never answers
    joins_late: bool = False
    ring: int = 1000  # batches the engine keeps for replays
    ranks: int = 1
    max_blocks: int | None = None
    features: Features = field(default_factory=Features)


Message = tuple[int, bytes] | str  # number and payload; "lost" or "up"


class Line:
    """One rank of an engine, the way to it, and what the gateway knows of it."""

    def __init__(self, world: World, holder: int, rng: Random) -> None:
        self.world, self.holder, self.rng = world, holder, rng
        self.troubles = world.troubles
        self.life = 0
        self.lives: dict[bytes, int] = {}  # digest -> the life that published it
        self.wire: deque[Message] = deque()
        self.late: list[Message] = []
        self.wanted: Replay | None = None
        self.answers: deque[tuple[int, bytes]] | None = None
        self.complete = True
        self.dead = not self.troubles.replay_lives
        self.is_frozen = False
        self.held: deque[Message] | None = None  # what a blackhole has taken; None: there is none
        self.saved: bytes | None = None  # the last snapshot
        self.is_uncounted = False  # it is kept that copies do not count
        self.running: Steps = iter(())
        self.excluded = 0
        self._be_born()

    @property
    def state(self) -> StreamState:
        """What the gateway says of its picture."""
        return self.follower.state

    # the engine

    def _be_born(self) -> None:
        self.life += 1
        features = self.troubles.features
        self.engine = TrueEngine(features, Random(self.rng.getrandbits(64)), self.life)
        self.ring: deque[tuple[int, bytes]] = deque(maxlen=self.troubles.ring)
        self.next_seq = 0

    def work(self) -> None:
        if self.is_frozen:
            return
        world = self.world
        self.publish(self.engine.step(world.prompts, world.now(), self.holder))

    def publish(self, payload: bytes | None, *, calm: bool = False) -> None:
        if payload is None:
            return
        troubles, rng = self.troubles, self.rng
        if not calm and rng.random() < troubles.spoilt:
            payload = spoilt(payload, rng)
        message = (self.next_seq, payload)
        self.next_seq += 1
        self.lives[digest_of(payload)] = self.life
        self.ring.append(message)
        if calm:
            self.wire.append(message)
            return
        way = self.wire if self.held is None else self.held
        if rng.random() < troubles.lost:
            return
        if rng.random() < troubles.corrupt:
            message = (message[0], corrupt(payload, rng))
        if rng.random() < troubles.late:
            self.late.append(message)
            return
        way.extend([message] * (2 if rng.random() < troubles.doubled else 1))

    def bring_late(self) -> None:
        if self.held is not None:
            return
        self.rng.shuffle(self.late)
        self.wire.extend(self.late)
        self.late.clear()

    def freeze(self) -> None:
        """The engine stands still, or goes on if it did."""
        self.is_frozen = not self.is_frozen

    def blackhole(self) -> None:
        """Nothing reaches the gateway any more; or again. Then what the engine kept for it comes,
        as far as it had room, or the connection is a new one."""
        if self.held is None:
            self.held = deque()
            return
        held, self.held = self.held, None
        if self.rng.random() < 0.5:
            self.wire.extend(list(held)[: self.rng.choice((0, 1, 5, 1000))])
        else:
            self.wire.extend(("lost", "up"))

    def restart(self, silent: bool = False) -> None:
        """The new life has done a little before anybody hears of it."""
        if silent and self.wanted is not None:
            return  # two lives in one replay cannot be told apart
        self.is_frozen, self.held = False, None
        self.late.clear()
        self._be_born()
        if self.answers is not None:
            self.answers, self.complete = deque(list(self.answers)[:1]), False
        if silent:
            self.wire = deque(m for m in self.wire if isinstance(m, str))
            for _ in range(self.rng.randrange(8)):
                self.work()
            return
        self.wire = deque(m for m in self.wire if isinstance(m, str))
        self.wire.append("lost")
        for _ in range(self.rng.choice((0, 1, 3, 8, 20))):
            self.work()
        self.wire = deque(m for m in self.wire if isinstance(m, str))
        self.late.clear()
        self.wire.append("up")

    def break_link(self) -> None:
        if self.held is not None:
            return
        self.wire.append("lost")
        for _ in range(self.rng.randrange(4)):
            length = len(self.wire)
            self.work()
            while len(self.wire) > length:
                self.wire.pop()
        self.wire.append("up")

    # the gateway

    def follow(self) -> None:
        """A new gateway, which knows nothing."""
        self.index = index = self.world.index
        size = self.troubles.features.block_size
        self.blocks = EngineBlocks(self.holder, size, holdings=index)
        self.world.healer.attend(self.blocks)
        if self.is_uncounted:
            self.blocks.count_no_copies()
        self.is_uncounted = not self.blocks.copies_count
        self.finder = DialectFinder(["chaos"], lora_path=lambda _: ADAPTER.lora.path)
        self.blocks.verify_hashes(self.finder)
        self.follower = EventApplier(
            self.blocks,
            can_replay=self.troubles.can_replay,
            holdings=index,
        )
        self.follower.stream.max_held_batches = 6
        self.running = iter(())
        self.wanted = self.answers = self.held = None
        self.wire = deque(["up"])
        self.late.clear()

    def follow_without_state(self) -> None:
        """A new gateway, which has no `--state-dir`."""
        self.saved, self.is_uncounted = None, False
        self.follow()

    def keep(self) -> None:
        """As `fleet.state_dir`: a snapshot between two batches."""
        position, index = self.follower.position, self.world.index
        if position is not None:
            assert isinstance(index, MemoryIndex)
            self.saved = encoded(result(self.blocks.take(position)), index)

    def restore(self) -> None:
        """A new gateway, which has the last snapshot."""
        self.follow()
        if self.saved is not None:
            for step in self.follower.restore(SavedHolder(self.saved)):
                self._do(step)

    def start(self, steps: Steps) -> None:
        """One thing at a time: what is under way is done first."""
        self.finish()
        self.running = steps

    def advance(self, count: int) -> None:
        for _ in range(count):
            step = next(self.running, None)
            if step is None:
                return
            self._do(step)

    def finish(self) -> None:
        for step in self.running:
            self._do(step)

    def _do(self, step: Step) -> None:
        if isinstance(step, Replay):
            self.wanted, self.answers = step, None
        else:
            self.index.apply(step)

    def deliver(self) -> None:
        if not self.wire:
            return
        self.finish()
        if self.troubles.snapshot and self.rng.random() < 0.3:
            self.keep()
        self.finder.step(16)  # as `fleet.orphan_resolution.OrphanResolver`, between two messages
        message = self.wire.popleft()
        if message == "lost":
            self.follower.lost()
        elif message == "up":
            self.start(self.follower.resume())
        elif isinstance(message, tuple) and not self._cannot_be_told(*message):
            self.start(self.follower.live(*message))

    def _cannot_be_told(self, seq: int, payload: bytes) -> bool:
        """A restart that kept the link, and its first message has just the next number: nobody
        can see that (kv/events/stream.py says so). Such a message is lost here."""
        stream = self.follower.stream
        digest, life = stream.digest, self.lives.get(digest_of(payload), self.life)
        if digest is None or stream.last_seq is None or seq != stream.last_seq + 1:
            return False
        hidden = life != self.lives.get(digest, life)
        self.excluded += hidden
        return hidden

    def serve_replay(self) -> None:
        """The engine answers, if its socket lives; else the gateway's patience ends."""
        self.finish()
        if self.wanted is None or self.answers is not None:
            return
        if self.dead or self.is_frozen or self.held is not None:
            self.answers, self.complete = deque(), False
            return
        rng, troubles, wanted = self.rng, self.troubles, self.wanted.from_seq
        kept = [m for m in self.ring if m[0] >= wanted]
        room = rng.choice((1, 2, 5, 1000)) if troubles.holes else 1000
        sent = [m for i, m in enumerate(kept) if i < room or rng.random() >= troubles.holes]
        self.complete = len(kept) < room or rng.random() >= troubles.holes
        if troubles.corrupt:
            share = troubles.corrupt / 2
            sent = [(s, corrupt(p, rng)) if rng.random() < share else (s, p) for s, p in sent]
        self.answers = deque(sent)

    def take_answer(self) -> None:
        self.finish()
        if self.answers is None:
            self.serve_replay()
        elif self.answers:
            self.start(self.follower.replayed(*self.answers.popleft()))
        else:
            self.wanted = self.answers = None
            self.start(self.follower.replay_ended(self.complete))

    def adopt(self) -> None:
        self.finish()
        if not self.blocks.num_orphans or not self.world.prompts:
            return
        prompt = self.rng.choice(self.world.prompts[-40:])
        hashes = self.engine.blocks_of(prompt)
        self.index.apply(self.blocks.adopt(hashes, self.world.keys(prompt)))

    def report(self) -> None:
        self.blocks.count_no_copies()  # as `fleet.Fleet.reports`, if a client asks for it
        self.is_uncounted = True
        if self.world.prompts:
            prompt = self.rng.choice(self.world.prompts[-40:])
            self.publish(self.engine.report(prompt, self.world.now(), self.holder))


MakeIndex = Callable[[int | None], Index]


def _memory_index(max_blocks: int | None) -> Index:
    return MemoryIndex(max_blocks=max_blocks)


class World:
    """`storm` as long as you like, then `calm`, then `judge`.

    Where there are reports, some gateways have `--heal`, in others clients ask for it. Of two in a
    row, the second has `--heal` or the `--state-dir` of the first: who has neither may hear reports
    that it takes for copies (docs/reliability.md).
    """

    def __init__(
        self,
        troubles: Troubles,
        rng: Random,
        make_index: MakeIndex | None = None,
    ) -> None:
        """`make_index`: for each gateway that there is, with the most blocks that it may have."""
        self.troubles, self.rng = troubles, rng
        make = make_index or _memory_index
        self._make_index = partial(make, troubles.max_blocks)
        self._time = 0
        self.prompts: list[Prompt] = []
        self.hasher = BlockHasher(troubles.features.block_size)
        self.index = self._make_index()
        self.healer = self._healer()
        self.lines = [Line(self, holder, rng) for holder in range(troubles.ranks)]
        if troubles.joins_late:
            for line in self.lines:
                for _ in range(rng.randint(1, 30)):
                    line.work()
        for line in self.lines:
            line.follow()

    def now(self) -> float:
        """A batch's time; no two are equal, in whatever life."""
        self._time += 1
        return float(self._time)

    def keys(self, prompt: Prompt) -> list[BlockKey]:
        tokens = np.array(prompt.tokens, dtype=np.uint32)
        lora = prompt.lora.name if prompt.lora else None
        return self.hasher.keys(tokens, request_extras(lora, prompt.salt))

    # what happens

    def storm(self, turns: int) -> Iterator[str]:
        """Yields what was done, turn by turn."""
        rare = self._rare()
        for _ in range(turns):
            line = self.rng.choice(self.lines)
            name = next((name for name, share in rare if self.rng.random() < share), None)
            if name is None:
                usual = ("work", "deliver", "deliver", "take_answer", "take_answer", "advance")
                name = self.rng.choice((*usual, "bring_late"))
            yield f"{name} {line.holder}"
            self._turn(line, name)

    def _rare(self) -> list[tuple[str, float]]:
        t = self.troubles
        return [
            ("restart", t.restart),
            ("silent_restart", t.silent_restart),
            ("break_link", t.link),
            ("gateway", t.gateway),
            ("snapshot", t.snapshot),
            ("dead_replay", t.dead_replay),
            ("freeze", t.freeze),
            ("blackhole", t.blackhole),
            ("clear", t.clear),
            ("report", t.report),
            ("adopt", t.adopt),
            ("audit", t.audit),
        ]

    def _turn(self, line: Line, name: str) -> None:
        match name:
            case "restart":
                line.restart()
            case "silent_restart":
                line.restart(silent=True)
            case "gateway" | "snapshot":
                self._restart_gateway(with_state=name == "snapshot")
            case "dead_replay":
                line.dead = not line.dead or not self.troubles.replay_lives
            case "clear":
                cpu_too = self.rng.random() < 0.3
                line.publish(line.engine.clear(self.now(), line.holder, cpu_too))
            case "audit":
                line.start(line.follower.recheck())
            case "advance":
                line.advance(self.rng.randint(1, 3))
            case _:
                getattr(line, name)()

    def _healer(self, heals: bool = False) -> FullReporter:
        heals = heals or (self.troubles.report > 0 and self.rng.random() < 0.5)
        return FullReporter(1.0 if heals else 0.0)

    def _restart_gateway(self, with_state: bool) -> None:
        if with_state and self.rng.random() < 0.3:  # it was not killed
            for line in self.lines:
                line.finish()
                line.keep()
        self.index = self._make_index()
        self.healer = self._healer(heals=self.troubles.report > 0 and not with_state)
        for line in self.lines:
            if with_state:
                line.restore()
            else:
                line.follow_without_state()

    # and then

    def calm(self) -> None:
        """The network is well again, engines go on, and a silence makes the gateway ask."""
        for line in self.lines:
            line.is_frozen = False
            if line.held is not None:
                line.blackhole()
            line.bring_late()
            line.dead = not self.troubles.replay_lives
        self._settle()
        self._serve()
        if self.troubles.can_replay:
            for line in self.lines:
                line.start(line.follower.recheck())
            self._settle()
        self._serve()
        for line in self.lines:
            self.prompts += line.engine.under_way()

    def _serve(self) -> None:
        for line in self.lines:
            for _ in range(3):
                length = len(line.wire)
                while len(line.wire) == length:
                    payload = line.engine.step(self.prompts, self.now(), line.holder)
                    line.publish(payload, calm=True)
        self._settle()

    def _settle(self) -> None:
        for line in self.lines:
            for _ in range(3_000):
                line.finish()
                if line.wire:
                    line.deliver()
                elif line.wanted is not None:
                    self._answer_calmly(line)
                else:
                    break
            else:
                raise AssertionError("it never comes to rest")

    def _answer_calmly(self, line: Line) -> None:
        if line.answers is None and not line.dead and line.wanted is not None:
            line.answers = deque(m for m in line.ring if m[0] >= line.wanted.from_seq)
            line.complete = True
            return
        line.take_answer()
