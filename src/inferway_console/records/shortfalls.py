"""Shortfalls: blocks that an engine has not delivered though it was believed to hold them, why, and
what is done about it.

A request that fell short waits for `later`: until then the engine's events have come that may tell
why. Then the index is asked again. Where nothing explains it, the picture of the engine is wrong:
once that has happened REPAIR_AFTER times in REPAIR_SECONDS, what was not delivered is forgotten,
with all that lies behind it, and the engine is compared with what is believed of it, if it can be
asked for a replay.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inferway.errors import InferwayError
from inferway.fleet.engine import Engine, StreamView
from inferway.kv.index.protocol import CPU, GPU, STORAGE, Index, MatchResult, Remove
from inferway.metrics import Family, counter
from inferway.model import BlockKey, Endpoint
from inferway.tasks import Tasks
from inferway_console.records.decided import DecidedRequest
from inferway_console.records.ended import Ended
from inferway_console.records.misses import Evidence, of_delivery
from inferway_console.records.record import MissKind
from inferway_console.records.recorder import Recorder

log = logging.getLogger("inferway.records")

MOST_WAITING = 1_000
REPAIR_AFTER = 3  # shortfalls that nothing explains, of one endpoint
REPAIR_SECONDS = 60.0  # within so many
RECHECK_SECONDS = 60.0  # an engine is compared no more often


class KnowsEngines(Protocol):
    """The part of the fleet that is asked (fleet.Fleet)."""

    def engine(self, name: str) -> Engine | None: ...


# The kind of what an endpoint was sent with another salt or adapter, by a prompt's first key.
UnderOther = Callable[[Endpoint, BlockKey], MissKind | None]


@dataclass(slots=True)
class _Wrong:
    """Shortfalls of one endpoint that nothing explains."""

    at: deque[float] = field(default_factory=lambda: deque(maxlen=REPAIR_AFTER))
    missing: deque[Sequence[BlockKey]] = field(default_factory=lambda: deque(maxlen=REPAIR_AFTER))
    rechecked: float = float("-inf")

    def is_enough(self, now: float, missing: Sequence[BlockKey]) -> bool:
        self.at.append(now)
        self.missing.append(missing)
        return len(self.at) == REPAIR_AFTER and now - self.at[0] <= REPAIR_SECONDS

    @property
    def last_blocks(self) -> int:
        """The number of blocks of which they were short, if each was of its last one alone; else
        0."""
        if any(len(keys) != 1 for keys in self.missing):
            return 0
        return len({keys[0] for keys in self.missing})


class Shortfalls:
    """`look` is the recorder's Doubt. `later` calls what it is given when the engines' events must
    have come; `clock` is the director's. `close` at the end."""

    def __init__(
        self,
        recorder: Recorder,
        index: Index,
        fleet: KnowsEngines,
        later: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        *,
        under_other: UnderOther | None = None,
    ) -> None:
        self.repairs: dict[str, int] = {}  # by engine: how often something was forgotten
        self._recorder = recorder
        self._index = index
        self._fleet = fleet
        self._later = later
        self._clock = clock
        self._under_other = under_other
        self._waiting: list[tuple[Ended, DecidedRequest, int]] = []
        self._wrong: dict[str, _Wrong] = {}  # by endpoint
        self._tasks = Tasks(log, "the records of some requests do not say why they fell short")

    def look(self, ended: Ended, noted: DecidedRequest, short: int) -> bool:
        """Look into it later; False if too many wait for that."""
        if len(self._waiting) >= MOST_WAITING or not noted.keys:
            return False
        self._waiting.append((ended, noted, short))
        if len(self._waiting) == 1:
            self._later(self._due)
        return True

    async def close(self) -> None:
        """Record what waits, with what is known by now."""
        self._recorder.settle()
        await self._tasks.close()
        await self._look_into(self._take())

    def families(self) -> Iterator[Family]:
        """Yield how often what was believed of an engine's cache was found wrong by its answers."""
        yield counter(
            "picture_repairs",
            "Times that blocks were forgotten because the engine did not deliver them, several"
            " times, and no event of it has told why.",
            ["engine"],
            {(engine,): number for engine, number in self.repairs.items()},
        )

    def _due(self) -> None:
        self._tasks.spawn(self._look_into(self._take()))

    def _take(self) -> list[tuple[Ended, DecidedRequest, int]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _look_into(self, waiting: Sequence[tuple[Ended, DecidedRequest, int]]) -> None:
        if not waiting:
            return
        try:
            found = await self._index.match_all([noted.keys for _, noted, _ in waiting])
        except InferwayError:  # the index is away: nothing is known of now
            found = [noted.found for _, noted, _ in waiting]
        finished = [
            self._judged(ended, noted, short, now_found)
            for (ended, noted, short), now_found in zip(waiting, found, strict=True)
        ]
        self._recorder.keep(finished)

    def _judged(self, ended: Ended, noted: DecidedRequest, short: int, found: MatchResult) -> Ended:
        record = ended[5]
        assert record.target is not None
        endpoint = record.target.endpoint
        holder, size = endpoint.holder, noted.block_size
        believed = record.reused_tokens // size
        missing = noted.keys[max(believed - short, 0) : believed]
        engine = self._fleet.engine(endpoint.engine)
        stream = None if engine is None else engine.stream(endpoint)
        evidence = Evidence(
            believed=min(noted.found.blocks.get(holder, 0), believed),
            held=found.blocks.get(holder, 0),
            removal=None if stream is None else stream.removals.of(missing, noted.at),
            is_under_other=self._under_other and self._under_other(endpoint, noted.keys[0]),
            context=None if engine is None else engine.max_model_len,
            is_current=stream is not None and stream.state.is_settled,
        )
        verdict = of_delivery(record, noted, short, evidence)
        if verdict.is_wrong and stream is not None:
            self._is_wrong(endpoint, stream, missing)
        return (*ended[:6], verdict.misses)

    def _may_draft(self, endpoint: Endpoint) -> bool:
        """Return whether it is not known of the engine if it drops the last block it matches."""
        engine, layout = self._fleet.engine(endpoint.engine), self._index.layout(endpoint.holder)
        if engine is None or engine.settings.speculation is not None:
            return False
        return not engine.cache_facts.drops_last_block and not (
            layout is not None and layout.drops_last_block
        )

    def _is_wrong(
        self, endpoint: Endpoint, stream: StreamView, missing: Sequence[BlockKey]
    ) -> None:
        """Nothing explains that these blocks were not there."""
        now = self._clock()
        wrong = self._wrong.setdefault(endpoint.name, _Wrong())
        if not wrong.is_enough(now, missing):
            return
        if wrong.last_blocks > 1 and self._may_draft(endpoint):
            if wrong.last_blocks < REPAIR_AFTER:  # a few more will tell
                return
            wrong.at.clear()
            log.warning(
                "engine %s has reused one block less than it holds, %d times in %g s: it drops the"
                " last block, as vLLM does with EAGLE and MTP drafts, and that is reckoned with"
                " from now on. If it does not draft, give --engine URL,speculation=none",
                *(endpoint.name, REPAIR_AFTER, REPAIR_SECONDS),
            )
            stream.drops_last_block()
            return
        # what lies behind them cannot be matched without them
        keys = list(missing)
        self._index.apply([Remove(endpoint.holder, keys, tier) for tier in (GPU, CPU, STORAGE)])
        self.repairs[endpoint.engine] = self.repairs.get(endpoint.engine, 0) + 1
        if now - wrong.rechecked < RECHECK_SECONDS:
            return
        wrong.rechecked = now
        log.warning(
            "engine %s did not deliver blocks that it holds by the gateway's view, %d times in %g"
            " s, and no event of it says why: they are forgotten, and its cache is compared anew",
            *(endpoint.name, REPAIR_AFTER, REPAIR_SECONDS),
        )
        stream.recheck()
