"""A gateway in front of the simulated fleet: what it knows, which is never quite what is so.

It counts its own requests, reads the engines' metrics every `scrape_seconds`, and hears of blocks
when the events have arrived; prompts on their way count as held, as in `director`. The table that
it makes of this is filled as `fleet.columns` and `routing.match` fill it.

What several gateways tell each other comes later still. The workers of one machine count their
requests in memory that all of them read, and one process scrapes the engines for all. Gateways on
several machines tell each other how many requests they have at each engine. Both tell what their
plugins learn (`inferway.scheduling.expected_ttft.sharing`), and which prompts are on their way,
unless those are left out. What is told within a short time goes out together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np

from inferway.cluster.bus.peer_messages import OnItsWay
from inferway.cluster.bus.peer_messages import Shared as Learned
from inferway.cluster.bus.workers import TOGETHER_SECONDS, ToldOverlay
from inferway.fleet.table import RECENT_SECONDS
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import Candidates, Column, Endpoint, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage
from inferway.routing.limits.goodput_gate import GoodputGate
from inferway.routing.limits.queue import Waiter
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sent_log import ROW
from inferway.scheduling.expected_ttft.sharing import Begins, Event, Took, Waits, open_logs
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import (
    AdmitsInTime,
    DataProducer,
    ProfileHandler,
    RequestListenerFactory,
    RequestOutcome,
)
from inferway_bench.policies.engine import Engine, Job, Leg
from inferway_bench.policies.requests import MODEL, SimRequest
from inferway_bench.processes import BenchError

_ANY_NUMBER = 1 << 40  # of requests
_FEW = 16  # engines; more are sooner written at once
_MANY = 12  # bits; from so many on numpy finds them sooner


@dataclass(slots=True)
class Policy:
    """The policy by which a gateway chooses. It knows the engines' blocks by KV events if it
    `sees_blocks`, and by looking into the engines' caches if it `sees_truth`."""

    chooser: ProfileHandler
    producers: Sequence[DataProducer] = ()
    following: Sequence[RequestListenerFactory] = ()
    sees_blocks: bool = False
    sees_truth: bool = False
    knows_groups: bool = True  # of KV caches; False: what full attention holds counts as reusable
    endpoints: Sequence[Endpoint] = ()  # with their roles; empty: engines that hand over nothing
    sharing: SharingSpec | None = None  # with the other gateways; None: each is alone
    admission: AdmitsInTime | None = None  # has requests wait; None: none waits

    @property
    def hears(self) -> bool:
        """True if the policy asks which engine holds which blocks."""
        return self.sees_blocks or self.sees_truth

    @property
    def learning(self) -> Sequence[ExpectedTtft]:
        """The plugins that learn, and can tell what."""
        return [each for each in self.producers if isinstance(each, ExpectedTtft)]


def chosen(candidates: Candidates, row: int) -> SchedulingResult:
    """Return the choice of the candidate in this row."""
    matched, blocks = candidates.matched_blocks[row], candidates.prompt_blocks[row]
    return SchedulingResult((Target(candidates.endpoints[row], 0.0, int(matched), int(blocks)),))


class Holders:
    """The holders of blocks: each block has the bits of its engines, so that a prompt is matched
    with all of them at once, however many there are. An engine that holds a block holds all before
    it."""

    __slots__ = ("_masks",)

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def add(self, engine: int, blocks: Iterable[int]) -> None:
        masks, bit = self._masks, 1 << engine
        for block in blocks:
            masks[block] = masks.get(block, 0) | bit

    def remove(self, engine: int, blocks: Iterable[int]) -> None:
        """Forget blocks of the engine."""
        masks, bit = self._masks, 1 << engine
        for block in blocks:
            left = masks.get(block, 0) & ~bit
            if left:
                masks[block] = left
            else:
                masks.pop(block, None)

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many of `blocks`, from the start, each engine holds that has any."""
        held: dict[int, int] = {}
        masks = self._masks
        if not blocks:
            return held
        mask = masks.get(blocks[0], 0)
        at = 1
        while mask and at < len(blocks):
            still = mask & masks.get(blocks[at], 0)
            if still != mask:
                _note(held, mask ^ still, at)
                mask = still
            at += 1
        _note(held, mask, at)
        return held


def _note(held: dict[int, int], bits: int, count: int) -> None:
    if bits.bit_count() > _MANY:
        octets = np.frombuffer(bits.to_bytes(-(-bits.bit_length() // 8), "little"), np.uint8)
        engines = np.unpackbits(octets, bitorder="little").nonzero()[0].tolist()
        held.update(dict.fromkeys(engines, count))
        return
    while bits:
        low = bits & -bits
        held[low.bit_length() - 1] = count
        bits ^= low


class Feed:
    """The KV events of all engines on their way, and what is believed once they have arrived."""

    def __init__(
        self, delay: float, *, is_heard: bool = True, holders: Holders | None = None
    ) -> None:
        self._delay = delay
        self._is_heard = is_heard  # else nothing is kept
        self._coming: deque[tuple[float, int, Sequence[int], Sequence[int], Job | None]] = deque()
        self.holders = Holders() if holders is None else holders  # of what has arrived
        self._is_partial = False  # nobody knows what came before

    def forget(self, replayed: Sequence[Engine]) -> None:
        """Forget what has come, but for what these engines hold and tell again."""
        self._coming.clear()
        self.holders, self._is_partial = Holders(), not replayed
        for engine in replayed:
            self.holders.add(engine.number, engine.cache.held())

    def send(
        self, now: float, engine: int, stored: Sequence[int], removed: Sequence[int],
        job: Job | None = None,
    ) -> None:  # fmt: skip
        """Send what an engine has stored and removed; the stored blocks are the prompt of `job`."""
        if self._is_heard:
            self._coming.append((now + self._delay, engine, stored, removed, job))

    def deliver(self, now: float) -> None:
        """Believe what has arrived by `now`."""
        coming, holders = self._coming, self.holders
        while coming and coming[0][0] <= now:
            _, engine, stored, removed, job = coming.popleft()
            holders.remove(engine, removed)
            is_adopted = self._is_partial and job is not None and len(stored) > 0
            holders.add(engine, job.request.blocks if job and is_adopted else stored)
            if job is not None:
                job.gateway.on_stored(job)

    def match(self, request: SimRequest) -> Mapping[int, int]:
        """Return how many blocks of a prompt each engine is believed to reuse."""
        return self.holders.match(request.blocks)

    def with_coming(
        self, overlay: SpeculativeOverlay, blocks: Sequence[int], found: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the same with what prompts on their way bring to engines."""
        return overlay.extend(blocks, found)


class Gateway:
    """A simulated gateway. Gateways with a shared `feed` get the same events at the same time."""

    def __init__(
        self, engines: Sequence[Engine], block_tokens: int, policy: Policy, feed: Feed,
        scrape_seconds: float,
    ) -> None:  # fmt: skip
        self.block_tokens = block_tokens
        self.policy = policy
        self.feed = feed
        self.overlay = SpeculativeOverlay()
        endpoints = policy.endpoints or endpoints_of(len(engines))
        self.table = idle(endpoints, block_tokens)  # its load columns are kept
        self.table.awaiting_first_token[:] = 0
        self._engines = engines
        self._fade = math.exp(-scrape_seconds / RECENT_SECONDS)
        self._shared: Shared | None = None  # None: it is alone
        self._shown: Sequence[Endpoint] | None = None  # the first of all; None: all

        self._gate: GoodputGate | None = None
        if policy.admission is not None:
            self._gate = GoodputGate(policy.admission, lambda _: replace(self.table), _ANY_NUMBER)
        self._held: dict[Waiter, tuple[Job, LLMRequest]] = {}

    @property
    def holds_any(self) -> bool:
        """True if requests wait here."""
        return bool(self._held)

    def show(self, count: int) -> None:
        """Keep to the first so many engines from now on."""
        self._shown = self.table.endpoints[:count]

    def join(self, post: Post, place: int, first: Gateway) -> None:
        """Tell the other gateways from now on, and hear them. It is number `place` of them, and
        `first` is the first one."""
        if post.spec.one_machine:
            self.table = first.table
        self._shared = Shared(place, post, self.policy.learning, self.table)
        self.overlay = self._shared.overlay

    def hear(self, now: float) -> None:
        """Take over what others have told, as far as it has come by now."""
        if self._shared is not None:
            self._shared.hear(now)

    def scrape(self, ticks: int) -> None:
        """Read all engines' metrics, for the first time in `ticks` scrapes: fleet.Fleet._loaded."""
        told = [engine.told for engine in self._engines]
        table = self.table
        table.running[:], table.waiting[:], table.awaiting_first_token[:], table.kv_usage[:] = zip(
            *told, strict=True
        )
        np.add(table.running, table.waiting, out=table.others)
        table.others -= table.in_flight
        np.maximum(table.others, 0.0, out=table.others)
        table.recent_prefill_tokens *= self._fade**ticks

    def arrive(self, job: Job, llm: LLMRequest, now: float) -> int | None:
        """Return the row of the engine that a job goes to; None: it waits here (`turns`)."""
        if self._gate is None:
            return self.route(job, llm, now)
        if self._gate.enters(MODEL, now):
            return self._sent(job, llm, now)
        candidates, _ = self._candidates(job.request, llm, now)
        spare = self._gate.admission.spare_seconds(llm, candidates)
        self._held[self._gate.wait(MODEL, "", 0, now, most=math.inf, spare=spare)] = (job, llm)
        return None

    def turns(self, now: float) -> Iterator[tuple[int, Job]]:
        """Yield the jobs that waited and go on now, each with the row of its engine."""
        gate = self._gate
        while gate is not None and (went := gate.turns(now)):
            for waiter in went:
                job, llm = self._held.pop(waiter)
                yield self._sent(job, llm, now), job

    def _sent(self, job: Job, llm: LLMRequest, now: float) -> int:
        assert self._gate is not None
        row = self.route(job, llm, now)
        self._gate.sent(MODEL)
        return row

    def route(self, job: Job, llm: LLMRequest, now: float) -> int:
        """Return the row of the engine that a job goes to; it is in flight from here on. A request
        in two legs goes on with `on_prefilled`."""
        policy = self.policy
        candidates, found = self._candidates(job.request, llm, now)
        choice = policy.chooser.choose(llm, candidates)
        target = choice.targets[0]
        if choice.prefill:
            job.leg, job.decodes_on, target = Leg.PREFILL, target, choice.prefill[0]
        if policy.following:
            made = [plugin.follow(llm, candidates, choice) for plugin in policy.following]
            job.followers = [follower for follower in made if follower is not None]
            for follower in job.followers:
                if job.leg is Leg.PREFILL:
                    follower.on_prefill(target, now)
                else:
                    follower.on_attempt(target, now)
        row = target.endpoint.holder
        self._book(job, row, target.matched_blocks, found.get(row, 0))
        return row

    def _candidates(
        self, request: SimRequest, llm: LLMRequest, now: float
    ) -> tuple[Candidates, Mapping[int, int]]:
        """The table of a request with the columns of all producers, and the blocks of its prompt
        that each engine is believed to hold."""
        self.hear(now)
        policy = self.policy
        candidates = replace(self.table, added={}, now=now)
        found: Mapping[int, int] = {}
        if policy.hears:
            self.feed.deliver(now)
            blocks, most = request.blocks, len(request.blocks)
            if policy.sees_truth:
                found = {e.number: e.cache.match(blocks, most) for e in self._engines}
            else:
                found = self.feed.match(request)
            # prompts on their way to an endpoint count as held by it
            held = self.feed.with_coming(self.overlay, blocks, found)
            candidates.matched_blocks = candidates.weighted_matched_blocks = self._column(held)
            candidates.prompt_blocks = np.full(len(self._engines), float(most))
        if self._shown is not None:
            holders = {endpoint.holder: row for row, endpoint in enumerate(self._shown)}
            adapters = candidates.adapters[: len(self._shown)]
            rows = np.arange(len(self._shown))
            candidates = candidates.narrowed(rows, self._shown, holders, adapters)
        for producer in policy.producers:
            producer.produce(llm, candidates)
        return candidates, found

    def on_prefilled(self, job: Job, engine: Engine, now: float) -> tuple[Job, int]:
        """Return the decode leg of a prefill leg that has ended, and the row that it goes to."""
        self.hear(now)
        self._count(engine.number, -1)
        request, target = job.request, job.decodes_on
        assert target is not None
        usage = Usage(request.prompt_tokens, 1, job.cached_blocks * self.block_tokens)
        for follower in job.followers:
            follower.on_prefilled(now, usage, moved=True)
            follower.on_attempt(target, now)
        decode = Job(job.index, request, job.arrived, self, followers=job.followers)
        decode.leg, decode.prefilled = Leg.DECODE, (engine, job)
        row = target.endpoint.holder
        self._book(decode, row, len(request.blocks), target.matched_blocks)
        return decode, row

    def _column(self, held: Mapping[int, int]) -> Column:
        column, size = np.zeros(len(self._engines)), len(held)
        if size > _FEW:
            column[np.fromiter(held, np.intp, size)] = np.fromiter(held.values(), float, size)
            return column
        for row, blocks in held.items():
            column[row] = blocks
        return column

    def _book(self, job: Job, row: int, matched: int, held: int) -> None:
        """Count the request as in flight, as the director does for an attempt."""
        request, size = job.request, self.block_tokens
        reusable = min(matched, (request.prompt_tokens - 1) // size)
        job.expected_uncached = request.prompt_tokens - reusable * size
        self._count(row, 1, job.expected_uncached)
        if self.policy.hears:
            job.speculation = self.overlay.add(row, request.blocks, skip=held)

    def _count(self, row: int, by: int, new_tokens: float = 0.0) -> None:
        self.table.in_flight[row] += by
        self.table.recent_prefill_tokens[row] += new_tokens
        if self._shared is not None:
            self._shared.count(row, by, new_tokens)

    def on_first_token(self, job: Job, now: float) -> None:
        """Tell the followers of a job that its answer begins to pass through."""
        self.hear(now)
        for follower in job.followers:
            follower.on_head(200)
            follower.on_first_chunk(now)

    def on_stored(self, job: Job) -> None:
        """Count a job's blocks as held no longer by guess: their events have arrived."""
        if job.speculation is not None:
            self.overlay.remove(job.speculation)

    def on_end(self, job: Job, row: int, now: float) -> None:
        """Count a job as in flight no longer, and tell its followers."""
        self.hear(now)
        self._count(row, -1)
        if job.followers:
            request = job.request
            cached = job.cached_blocks * self.block_tokens
            usage = Usage(request.prompt_tokens, request.output_tokens, cached)
            for follower in job.followers:
                follower.on_end(RequestOutcome("ok", now, usage))


def endpoints_of(num_engines: int) -> list[Endpoint]:
    """Return the endpoints of a fleet; holder i is engine i."""
    return [Endpoint(f"engine-{i}", f"http://engine-{i}", i) for i in range(num_engines)]


_TOGETHER_MS = 20.0  # of gateways on several machines, at most


class SharingSpec(msgspec.Struct, frozen=True):
    """The facts that gateways share, and their delay."""

    together_seconds: float  # what is told within this time goes out at its end
    way_seconds: float  # from there to the others
    one_machine: bool = False  # its processes share their counts, what is scraped, and a clock
    prompts: bool = True  # those on their way are told, too

    @property
    def delay_seconds(self) -> float:
        """The longest time from what happens to the others' knowing it."""
        return self.together_seconds + self.way_seconds


WORKERS = SharingSpec(TOGETHER_SECONDS, 0.0003, one_machine=True)
_KNOWN = "workers, and load@MS, peers@MS with the milliseconds until others know, such as peers@20"


def sharing_named(name: str) -> SharingSpec:
    """Return what is shared. Raises BenchError for a name that is not known."""
    kind, _, ms = name.partition("@")
    if name == "workers":
        return WORKERS
    if kind in ("load", "peers") and ms.isdecimal():
        together = min(float(ms), _TOGETHER_MS)
        way = float(ms) - together
        return SharingSpec(together / 1e3, way / 1e3, prompts=kind == "peers")
    raise BenchError(f"sharing {name!r} is not known; known: {_KNOWN}")


class Counted(msgspec.Struct, frozen=True):
    """A change by `by` of the requests at an engine, of which `new_tokens` are to be computed."""

    row: int
    by: int
    new_tokens: float


Message = Learned | OnItsWay | Counted


class Post:
    """The messages between gateways that are sent, until the others receive them."""

    def __init__(self, spec: SharingSpec, num_gateways: int, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.num_gateways = num_gateways
        self._clock = clock
        # By gateway: the last batch that it tells, and until when it grows.
        self._batches: list[tuple[float, list[Message]]] = [(-1.0, []) for _ in range(num_gateways)]
        # By gateway: (when it comes, who tells it, the batch), in order.
        self._coming: list[deque[tuple[float, int, list[Message]]]] = [
            deque() for _ in range(num_gateways)
        ]
        # what processes of one machine write of what they send
        self.sent = np.zeros((num_gateways, ROW))

    def tell(self, who: int, message: Message) -> None:
        """Tell all others what has happened now."""
        now = self._clock()
        until, batch = self._batches[who]
        if now > until:
            last, until, batch = until, now + self.spec.together_seconds, []
            if self.spec.one_machine:  # the first message waits for no others
                until = max(now, last + self.spec.together_seconds)
            self._batches[who] = until, batch
            for other, coming in enumerate(self._coming):
                if other != who:
                    coming.append((until + self.spec.way_seconds, who, batch))
        batch.append(message)

    def arrived(self, where: int, now: float) -> Iterator[tuple[int, Message]]:
        """Yield who told what, of all that has come before `now`, once."""
        coming = self._coming[where]
        while coming and coming[0][0] < now:
            _, who, batch = coming.popleft()
            for message in batch:
                yield who, message


class Shared:
    """One gateway's part: it tells the others what it does, and takes over what they tell."""

    def __init__(
        self, place: int, post: Post, plugins: Sequence[ExpectedTtft], table: Candidates
    ) -> None:
        """`place`: its number among the gateways. `table`: where it counts requests."""
        self._place = place
        self._post = post
        self._table = table
        self._told = ToldOverlay(self._tell)
        self.overlay = self._told if post.spec.prompts else SpeculativeOverlay()
        delay = 0.0 if post.spec.one_machine else post.spec.delay_seconds
        self._sharing = [
            plugin.share(partial(self._learned, number), delay)
            for number, plugin in enumerate(plugins)
        ]
        others = [f"{other:04}" for other in range(post.num_gateways) if other != place]
        for each in self._sharing:
            each.stand(f"{place:04}", others)
        if post.spec.one_machine:
            open_logs(self._sharing, post.sent, place)

    def count(self, row: int, by: int, new_tokens: float) -> None:
        """Tell that the counts of an engine have changed."""
        if not self._post.spec.one_machine:
            self._tell(Counted(row, by, new_tokens))

    def hear(self, now: float) -> None:
        """Take over what has come by now."""
        for who, message in self._post.arrived(self._place, now):
            match message:
                case Counted():
                    self._table.in_flight[message.row] += message.by
                    self._table.recent_prefill_tokens[message.row] += message.new_tokens
                case Learned():
                    self._sharing[message.plugin].hear(who, self._at_our_time(message.event))
                case OnItsWay():
                    self._told.hear(who, message)

    def _tell(self, message: Message) -> None:
        self._post.tell(self._place, message)

    def _learned(self, plugin: int, event: Event) -> None:
        self._tell(Learned(plugin, event))

    def _at_our_time(self, event: Event) -> Event:
        """Clocks of machines differ, so a message says how long ago something was when it went out.
        How long it was on its way nobody knows."""
        if self._post.spec.one_machine or not isinstance(event, Waits | Begins | Took):
            return event
        return msgspec.structs.replace(event, at=event.at + self._post.spec.way_seconds)
