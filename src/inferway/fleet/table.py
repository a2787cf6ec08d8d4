"""The endpoints, and what scheduling reads of them: one row each. No I/O; time is given.

Written by `fleet.Fleet` as engines come, tell of themselves and go, and by each request, which
takes a place and gives it back. An endpoint's row is its number, which is given again when it has
left and nothing is on its way there any more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inferway.errors import InvalidRequestError, NoEndpointError
from inferway.fleet.columns import STATES, EndpointColumns, ModelRows
from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Clear, Index
from inferway.model import EXACT, SCRAPED, STALE, Candidates, Column, Cut, Endpoint, HolderId, Rows

RECENT_SECONDS = 30.0  # time constant with which sent tokens stop being recent
# What was scraped longer ago than so many intervals loses its influence, half of it in as many.
STALE_INTERVALS = 3
STALE_SHARE = 1 - 0.5 ** (1 / STALE_INTERVALS)  # an interval
# By then whatever still names an endpoint that has left, speculation and followers, is over.
REST_SECONDS = 60.0
WINDOW_SCRAPES = (
    300  # scrapes; in so many, an engine has computed all prompts that it had at some time
)


class EndpointTable:
    """`engines`: those of the fleet, whenever one asks."""

    def __init__(
        self,
        engines: Sequence[Engine],
        index: Index,
        columns: EndpointColumns | None = None,
        on_counted: Callable[[], None] | None = None,
    ) -> None:
        """`on_counted`: own requests in flight have changed."""
        self._engines = engines
        self._index = index
        self._numbers = HolderIds()
        self._left: dict[HolderId, Engine] = {}  # whose number rests
        self._unbegun: dict[HolderId, FirstTokenCounter] = {}
        self._columns = columns if columns is not None else EndpointColumns()
        self._rows: dict[str, ModelRows] = {}  # of models with a live endpoint
        self._everyone: ModelRows | None = None  # the live endpoints of all models
        self._peers: list[Rows] = []  # of the columns: endpoints of the same model
        self.faded = 0.0  # recent tokens: as of when
        self.on_counted = on_counted or _nothing
        self.on_sent: Callable[[], None] = _nothing  # a request, by this gateway or another one
        self._holders: dict[str, HolderId] = {}  # by the names of the endpoints that are there
        self._names: dict[HolderId, str] = {}

    # what a request asks

    def candidates(self, model: str) -> Candidates:
        """Return the live endpoints of `model`, with matched columns empty. Raises
        NoEndpointError."""
        rows = self._rows.get(model)
        if rows is None:
            gone = [e.name for e in self._engines if model in e.model_names]
            names = ", ".join(gone) or "none is left in the list of engines"
            raise NoEndpointError(f"model {model!r}: none of its engines answers: {names}")
        return rows.candidates(self._columns)

    def everyone(self) -> Candidates:
        """Return the live endpoints, whatever they serve. Raises NoEndpointError if there is
        none."""
        if self._everyone is None:
            raise NoEndpointError("no pods available in datastore")
        return self._everyone.candidates(self._columns)

    def sole_model(self) -> str:
        """Return the model that all live endpoints serve, which is no adapter: for requests that
        name none, which vLLM answers so. Raises InvalidRequestError if there is no such model,
        NoEndpointError if there is no endpoint."""
        everyone = len(self.everyone().endpoints)
        bases = {card.name for engine in self._engines for card in engine.base_models}
        for name, rows in self._rows.items():
            if rows.num_endpoints == everyone and name in bases:
                return name
        raise InvalidRequestError(
            "model: the request names none, and engines serve different ones; expected one of:"
            f" {', '.join(sorted(self._rows))}",
            param="model",
        )

    def engines_of(self, model: str) -> frozenset[str]:
        """Return the names of the live engines of `model`; none if there is none."""
        rows = self._rows.get(model)
        return frozenset() if rows is None else rows.engines

    def cut(self, holder: HolderId) -> Cut | None:
        """Return how prompts are cut for the engine; None if it has not told."""
        return int(self._columns.cuts[holder]) or None

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        """Count a request that is on its way there, of which so many tokens must be computed."""
        self._columns.book(endpoint.holder, new_tokens)
        self.on_counted()
        self.on_sent()

    def release(self, endpoint: Endpoint) -> None:
        """Count a request no more, which has ended."""
        self._columns.release(endpoint.holder)
        self.on_counted()

    def in_flight(self, engine: Engine) -> int:
        """Return how many requests are on their way there, those of other gateways included."""
        self._columns.add_up()
        return int(sum(self._columns.in_flight[e.holder] for e in engine.endpoints))

    def own_in_flight(self, engines: Sequence[Engine]) -> list[int]:
        """Return how many requests this gateway itself has on their way to each."""
        requests, _ = self._columns.own()
        return [int(sum(requests[e.holder] for e in engine.endpoints)) for engine in engines]

    def num_booked(self, candidates: Candidates) -> float:
        """Return how many requests that this process counts are on their way to the candidates."""
        return self._columns.num_booked(candidates)

    def is_idle(self, engine: Engine) -> bool:
        """Return whether the engine had nothing to do when it told last, nothing that was sent
        there is on its way, as of the last time that all processes' requests were added up, and
        none of its event streams is cut off."""
        if engine.load["running"] or engine.load["waiting"]:
            return False
        in_flight, states = self._columns.in_flight, self._columns.states
        for endpoint in engine.endpoints:
            row = endpoint.holder
            if in_flight[row] or states[row] == STALE:
                return False
        return True

    def has_requests(self, engine: Engine) -> bool:
        """Return whether something that was sent there is on its way, as of the last time that all
        processes' requests were added up."""
        return any(self._columns.in_flight[endpoint.holder] for endpoint in engine.endpoints)

    def has_others(self, engine: Engine) -> bool:
        """Return whether the engine, as it told last, has more to do than was sent there as far as
        this gateway knew."""
        return any(self._columns.others[endpoint.holder] for endpoint in engine.endpoints)

    @property
    def hears_of_all(self) -> bool:
        """True if `on_sent` is called for all requests: no other process counts some of them."""
        return self._columns.is_alone

    def num_blocks(self, engine: Engine) -> int:
        """Return how many blocks the engine is believed to hold, all its endpoints together."""
        return sum(self._index.num_blocks(endpoint.holder) for endpoint in engine.endpoints)

    def state(self, endpoint: Endpoint) -> StreamState:
        """Return how true what scheduling believes of its cache is, as of the last change or
        scrape."""
        return STATES[int(self._columns.states[endpoint.holder])]

    # what other gateways have sent

    def holder_of(self, name: str) -> HolderId | None:
        """Return the holder of the endpoint of that name; None if there is none."""
        return self._holders.get(name)

    def own_counts(self) -> tuple[Mapping[HolderId, str], Column, Column]:
        """Return the names of the endpoints that are there, and by holder what this gateway has in
        flight: requests, and tokens that were sent of late."""
        return self._names, *self._columns.own()

    def count_elsewhere(self, holder: HolderId, requests: float, tokens: float) -> None:
        """Count so many more requests, and tokens sent of late, of other gateways."""
        self._columns.count_elsewhere(holder, requests, tokens)
        self.on_sent()

    # who is in it

    def add(self, engine: Engine, source: EventSource | None) -> Endpoint:
        """Return a new endpoint of `engine`: of the rank that `source` is of, if it is of one.

        vLLM 0.32 takes the header's number as a place among the ranks that this very API server
        manages (core_client.py, DPLBAsyncMPClient): all with the internal load balancer, those of
        its node with the hybrid one. With the external one it manages one, and we send none.
        """
        headers, rank = list(engine.headers), None
        if source is not None:
            rank = source.rank
            headers.append((b"x-data-parallel-rank", b"%d" % source.place))
        holder = self._numbers.take()
        endpoint = Endpoint(
            *(engine.name, engine.url, holder, rank, tuple(headers)),
            labels=engine.settings.all_labels,
        )
        if holder == len(self._columns):
            self._columns.grow(self._numbers.given)
        else:
            self._columns.clear(holder)
        self._columns.note_cut(holder, engine.cut or 0)
        self._unbegun[holder] = FirstTokenCounter()
        self._holders[endpoint.name], self._names[holder] = holder, endpoint.name
        return endpoint

    def make_room(self, endpoints: Sequence[Endpoint]) -> None:
        """Have rows for endpoints whose numbers another process has given them."""
        size = max([endpoint.holder + 1 for endpoint in endpoints], default=0)
        if size > len(self._columns):
            self._columns.grow(size)

    def retire(self, engine: Engine, now: float) -> None:
        """Take the engine's endpoints out of the table."""
        for endpoint in engine.endpoints:
            self._index.apply([Clear(endpoint.holder)])
            self._columns.forget_elsewhere(endpoint.holder)
            self._names.pop(endpoint.holder, None)
            if self._holders.get(endpoint.name) == endpoint.holder:
                del self._holders[endpoint.name]
            self._numbers.give_back(endpoint.holder, now)
            self._left[endpoint.holder] = engine

    def rested(self, now: float) -> list[Engine]:
        """Return whose it was for each number that is free from now on."""
        self._columns.add_up()
        freed = self._numbers.rested(now, lambda row: not self._columns.in_flight[row])
        return [self._left.pop(holder) for holder in freed]

    def set_serving(self, serving: Mapping[str, Sequence[Engine]]) -> None:
        """Say which engines serve each model now, and so in blocks of what size. A model without
        any loses its rows."""
        for engine in self._engines:
            for endpoint in engine.endpoints:
                self._columns.note_cut(endpoint.holder, engine.cut or 0)
        rows = {name: self._rows_of(engines) for name, engines in serving.items()}
        self._rows = {name: found for name, found in rows.items() if found is not None}
        peers = {found.holders: found.rows for found in self._rows.values()}
        self._peers = list(peers.values())
        self._everyone = self._rows_of([e for e in self._engines if e.healthy])

    def _rows_of(self, engines: Sequence[Engine]) -> ModelRows | None:
        live = [(endpoint, engine) for engine in engines for endpoint in engine.endpoints]
        if not live:
            return None
        return ModelRows(
            [endpoint for endpoint, _ in live],
            [engine.load.adapters for _, engine in live],
        )

    # how they are

    def is_resized(self, engine: Engine) -> bool:
        """Return whether the engine's blocks have another size than its rows."""
        return any(self.cut(e.holder) != engine.cut for e in engine.endpoints)

    def note_adapters(self, engine: Engine) -> None:
        for rows in self._rows.values():
            for endpoint in engine.endpoints:
                rows.tell_adapters(endpoint.holder, engine.load.adapters)

    def note_load(self, engine: Engine, now: float) -> None:
        """Take over the load that the engine's metrics have just told."""
        table = self._columns
        table.add_up()
        for endpoint in engine.endpoints:
            row, told = endpoint.holder, engine.load.of(endpoint.rank, len(engine.endpoints))
            for name in SCRAPED:
                getattr(table, name)[row] = told[name]
            running, waiting = told["running"], told["waiting"]
            table.others[row] = max(0.0, running + waiting - table.in_flight[row])
            table.awaiting_first_token[row] = self._unbegun[row].told(
                running, waiting, told.answering
            )
            table.scraped[row] = now
            table.free_blocks[row] = self._free_blocks(engine, row)

    def note_same_load(self, engine: Engine, now: float) -> None:
        """Take the load that the engine has told last for what it has to do now."""
        for endpoint in engine.endpoints:
            self._columns.scraped[endpoint.holder] = now

    def _free_blocks(self, engine: Engine, holder: HolderId) -> float:
        num_blocks = None if engine.facts is None else engine.facts.cache_blocks
        if num_blocks is None or self._columns.states[holder] != EXACT:
            return -1.0
        return max(0.0, num_blocks - self._index.num_blocks(holder))

    def note_states(self, engine: Engine) -> None:
        """Take over how true the picture of the engine's cache is."""
        for endpoint in engine.endpoints:
            stream = engine.stream(endpoint)
            state = StreamState.BLIND if stream is None else stream.state
            self._columns.states[endpoint.holder] = STATES.index(StreamState(state))

    def fade(self, now: float) -> None:
        """Let the tokens fade that this process has sent."""
        self._columns.fade(math.exp((self.faded - now) / RECENT_SECONDS))
        self.faded = now

    def nobody_follows(self) -> None:
        """Take all that is believed of caches as from before the link was lost."""
        self._columns.nobody_follows()

    def age(self, now: float, interval: float) -> None:
        """Let recent tokens and old scrapes fade; `interval` seconds are between two looks at an
        engine's load."""
        self.fade(now)
        table = self._columns
        for rows in self._peers:
            table.toward_the_mean(rows, now - STALE_INTERVALS * interval, STALE_SHARE)


@dataclass(slots=True)
class HolderIds:
    """Holders' numbers: small, because the index has a bit for each in every mask, and so given
    again. The lowest that is free is given first. One that is given back rests until its last
    request has ended, and a while longer."""

    given: int = 0  # so many different ones, ever
    _free: list[HolderId] = field(default_factory=list)  # a heap
    _resting: dict[HolderId, float] = field(default_factory=dict)  # -> since when

    def take(self) -> HolderId:
        if self._free:
            return heapq.heappop(self._free)
        self.given += 1
        return self.given - 1

    def give_back(self, holder: HolderId, now: float) -> None:
        self._resting[holder] = now

    def rested(self, now: float, is_idle: Callable[[HolderId], bool]) -> list[HolderId]:
        """Return the holders whose numbers are free from now on."""
        freed = [
            holder
            for holder, since in self._resting.items()
            if now - since >= REST_SECONDS and is_idle(holder)
        ]
        for holder in freed:
            del self._resting[holder]
            heapq.heappush(self._free, holder)
        return freed


@dataclass(slots=True)
class FirstTokenCounter:
    """Counts the requests of one endpoint that have not begun to answer. `told` is called with each
    scrape."""

    _off: float | None = None
    _least: float = math.inf  # of those that did not wait, in this window
    _seen: int = 0  # scrapes of it

    def told(self, running: float, waiting: float, answering: float | None) -> float:
        """`answering`: firsts - ended, None where they are not told; then -1 is returned."""
        if answering is None:
            return -1.0
        found = running + waiting - answering
        if self._off is None:
            self._off = found - waiting  # as if all that run were answering
        self._off = min(max(self._off, found - running - waiting), found - waiting)
        answer = found - self._off
        self._least = min(self._least, answer - waiting)
        self._seen += 1
        if self._seen == WINDOW_SCRAPES:
            self._off += self._least
            answer -= self._least
            self._least, self._seen = math.inf, 0
        return answer


def _nothing() -> None:
    """Nobody wants to know."""
