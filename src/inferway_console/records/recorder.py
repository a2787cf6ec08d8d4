"""Requests that pass -> their records, in the ring.

What a request was decided by is noted then (`Recorder.decided`), what has come of it when its
answer has ended (`on_answers`). What was noted is only put aside: some dozens are packed together,
when so many have come, and before their records. What was believed to be in an engine's cache, and
was not, waits a moment longer: for the engine's events, which may tell why (`shortfalls`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from secrets import token_bytes
from typing import Protocol

import msgspec
import numpy as np

from inferway.extension import EndedAnswer, Extension, Snapshot
from inferway.kv.index.prefix_lengths import different_lengths, longest
from inferway.kv.index.protocol import MatchResult
from inferway.metrics import Family, counter, gauge
from inferway.model import BlockKey, Candidates, HolderId, Prompt, block_size_of
from inferway.openai_api.llm_request import LLMRequest
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.routing.record import Record
from inferway.scheduling.expected_ttft.learning import is_try
from inferway_console.records.decided import (
    MANY,
    CandidatePacker,
    Columns,
    DecidedBatch,
    DecidedRequest,
    Elsewhere,
    Roster,
    Whose,
    columns_of,
    nearest,
)
from inferway_console.records.ended import Ended, EndedPacker
from inferway_console.records.record import A_TRY, RequestRecord
from inferway_console.records.ring import RecordRing

TOGETHER = 256  # are packed
MOST_TOGETHER = 2_000  # records in one snapshot
MOST_CELLS = 16_384  # candidates of all that wait to be packed
MOST_HASHES = 4_096  # remembered
MOST_KEYS = 20_000  # of requests whose blocks are to be written
_UNKNOWN = Matched(Prompt(np.array((), np.uint32), ()), MatchResult())  # none, or several prompts


class Whereabouts(Protocol):
    """Knows all endpoints (records.records)."""

    def num_endpoints(self) -> int: ...
    def of(self, holder: HolderId, routed: Routed) -> tuple[str, str] | None:
        """Return the name of a holder that was no candidate for the request, and why it was none;
        None if it has left."""


# Takes a request to which so many blocks less were delivered than were believed to be there, and
# hands it to `keep` later, with the reasons. False: it has too much to do.
Doubt = Callable[[Ended, DecidedRequest, int], bool]


class LooksElsewhere(Protocol):
    """Finds out whether a prompt without holders is held under another salt or adapter."""

    def look(self, routed: Routed, prompt: Prompt, noted: DecidedRequest) -> None: ...


class _Records(msgspec.Struct, frozen=True, array_like=True):
    """Records of one process for another, and the blocks of some by their place."""

    records: Sequence[RequestRecord]
    keys: Mapping[int, Sequence[BlockKey]]


class Recorder(Extension):
    """An extension that records requests. `clock` is the director's."""

    name = "records"

    def __init__(
        self,
        ring: RecordRing,
        clock: Callable[[], float],
        *,
        picked_by: str = "",
        whereabouts: Whereabouts | None = None,
        others: LooksElsewhere | None = None,
        keeps_keys: bool = False,
        drain: Callable[[], None] = lambda: None,
        wall_clock: Callable[[], float] = time.time,
        secret: bytes | None = None,
    ) -> None:
        """`picked_by`: the policy that chooses endpoints, if no profile is named. `keeps_keys`:
        the blocks of each request are put aside for the files. `drain`: brings the answers that
        wait (extension.Tap). `secret`: tenants and sessions are
        hashed with it."""
        self.ring = ring
        self.keeps_keys = keeps_keys  # until the files end
        self.keys: list[tuple[int, Sequence[BlockKey]]] = []  # record's number, its blocks
        self.doubt: Doubt | None = None  # None: blocks that were not delivered are not looked into
        self._clock = clock
        self._wall_clock = wall_clock
        self._picked_by = picked_by
        self._whereabouts = whereabouts
        self._others = others
        key = token_bytes(16) if secret is None else secret
        self._tenant = lru_cache(MOST_HASHES)(partial(_hashed, key, 4))
        self._session = lru_cache(MOST_HASHES)(partial(_hashed, key, 8))
        self._candidates = CandidatePacker(ring.names)
        self._answers = EndedPacker()
        self._batches: dict[tuple[int, int], DecidedBatch] = {}  # by list of endpoints, and columns
        self._batch: DecidedBatch | None = None  # of the last request
        self.settle = drain
        ring.settle = drain

    # what comes in

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        """Note in the request's record what it was decided by."""
        if routed.record is not None:
            routed.record.kept = self._decided(routed)

    def _decided(self, routed: Routed) -> DecidedRequest | None:
        candidates, request, decision = routed.candidates, routed.request, routed.decision
        targets = decision.targets
        chosen = candidates.rows.get(targets[0].endpoint.holder) if targets else None
        if chosen is None:
            return None
        row = chosen
        columns, batch = columns_of(candidates), self._batch
        if (
            batch is None
            or candidates.endpoints is not batch.roster.endpoints
            or len(columns) != batch.num_columns
        ):
            batch = self._batch = self._batch_of(candidates, len(columns))
        size, prompts = _prompts_of(routed, chosen)
        prompt, target = prompts[0] if len(prompts) == 1 else _UNKNOWN, targets[0]
        is_compared = target.matched_blocks or self.keeps_keys
        roster = batch.roster
        if roster.total > MANY:
            roster, columns, chosen = _few(roster, candidates, columns, chosen)
        noted = DecidedRequest(
            candidates.now,
            target,
            roster,
            chosen,
            size,
            (decision.profile or self._picked_by)
            + A_TRY * (len(columns) > 1 and is_try(candidates, row)),
            self._whose(request),
            prompt.found,
            prompt.prompt.block_keys if is_compared else (),
            routed.tells_its_reuse is True,
            request.body.truncate_prompt_tokens is not None,
            len(columns) > 1,
        )
        if not (batch.are_all and prompt.found.blocks):
            self._look_further(noted, routed, prompts)
        batch.waiting.append((noted, columns))
        if len(batch.waiting) >= batch.most:
            self._pack_candidates()
        return noted

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        """Put what has come of requests into the ring."""
        if self._batches:
            self._pack_candidates()
        ended = [
            (each.request_id, each.path, each.status, each.outcome, each.seconds, record, ())
            for each in answers
            if (record := each.record) is not None
        ]
        if self.doubt is not None:
            ended = [each for each in ended if not self._is_doubted(each)]
        self.keep(ended)

    def snapshot(self, since: int) -> Snapshot:
        """Return the records behind that number, and the blocks that were put aside for them."""
        self.settle()
        ring = self.ring
        seq, records = ring.since(since, MOST_TOGETHER)
        first = seq - len(records) + 1
        keys = {number - first: [*keys] for number, keys in self.take_keys(seq) if number >= first}
        return Snapshot(msgspec.msgpack.encode(_Records(records, keys)), seq)

    def merge(self, parts: Sequence[bytes]) -> None:
        """Put the records of other processes into the ring, in the order of the requests' ends."""
        found: list[tuple[float, RequestRecord, Sequence[BlockKey] | None]] = []
        for part in parts:
            told = msgspec.msgpack.decode(part, type=_Records)
            for place, record in enumerate(told.records):
                ended = record.at + record.total_ms / 1000
                found.append((ended, record, told.keys.get(place)))
        found.sort(key=lambda item: item[0])
        ring = self.ring
        for _, record, keys in found:
            number = ring.next_seq
            ring.append(record)
            if keys is not None and self.keeps_keys:
                self.keys.append((number, keys))

    # what becomes of it

    def _is_doubted(self, ended: Ended) -> bool:
        record: Record = ended[5]
        usage, noted = record.usage, record.kept
        if usage is None or usage.cached is None or record.reused_tokens <= usage.cached:
            return False
        if self.doubt is None or not isinstance(noted, DecidedRequest):
            return False
        short = shortfall(record, noted)
        return short > 0 and self.doubt(ended, noted, short)

    def keep(self, ended: Sequence[Ended]) -> None:
        """Put these into the ring, with what has been found out of them."""
        if not ended:
            return
        ring, row = self.ring, self._answers.row
        if ring.names.is_full:
            self._pack_candidates()  # with the names that they have
            ring.fresh_names()
            self._candidates.renew(ring.names)
        offset, names = self._wall_clock() - self._clock(), ring.names
        first = ring.next_seq
        kept = ring.extend([row(each, names, offset) for each in ended])
        if self.keeps_keys:
            self._keep_keys([ended[place] for place in kept], first)

    def _keep_keys(self, ended: Sequence[Ended], first: int) -> None:
        """Put the blocks of these aside; `first`: the number of the first record."""
        if len(self.keys) >= MOST_KEYS:  # the disk is slow: these have no blocks there
            del self.keys[: MOST_KEYS // 2]
        for number, each in enumerate(ended, first):
            if isinstance(noted := each[5].kept, DecidedRequest) and noted.keys:
                self.keys.append((number, noted.keys))

    def take_keys(self, upto: int) -> list[tuple[int, Sequence[BlockKey]]]:
        """Return the records up to that number whose blocks were put aside, and forget these."""
        taken = [item for item in self.keys if item[0] <= upto]
        self.keys = [item for item in self.keys if item[0] > upto]
        return taken

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of records, and of what was not reused."""
        self.settle()
        yield gauge("records", "Records of requests that are kept in memory.", value=len(self.ring))
        yield gauge("records_bytes", "Bytes of the records in memory.", value=self.ring.num_bytes)
        text = " that reused less of their prompts than they could have, by the reason."
        kinds = {(kind,): number for kind, number in self._answers.misses.items()}
        yield counter("missed_requests", f"Requests{text}", ["kind"], kinds)
        blocks = {(kind,): number for kind, number in self._answers.missed_blocks.items()}
        yield counter("missed_blocks", f"Blocks of requests{text}", ["kind"], blocks)

    def _batch_of(self, candidates: Candidates, num_columns: int) -> DecidedBatch:
        """Return those that wait to be packed with such a request."""
        endpoints, elsewhere = candidates.endpoints, self._whereabouts
        found = self._batches.get((id(endpoints), num_columns))
        if found is not None:
            return found
        if len(self._batches) >= TOGETHER:
            self._pack_candidates()
        number = len(endpoints)
        are_all = elsewhere is None or number >= elsewhere.num_endpoints()
        most = min(TOGETHER, MOST_CELLS // min(number, MANY))
        batch = DecidedBatch(
            self._candidates.roster(endpoints), num_columns, candidates, are_all, most
        )
        self._batches[id(endpoints), num_columns] = batch
        return batch

    def _pack_candidates(self) -> None:
        batches, self._batches, self._batch = self._batches, {}, None
        self._candidates.pack([batch for batch in batches.values() if batch.waiting])

    def _whose(self, request: LLMRequest) -> Whose:
        tenant, session = request.tenant or request.body.cache_salt, request.objectives.session
        return (
            self._tenant(tenant) if tenant else b"",
            self._session(session) if session else b"",
        )

    def _look_further(
        self, noted: DecidedRequest, routed: Routed, prompts: Sequence[Matched]
    ) -> None:
        """Note who else holds the prompt, as far as that is known."""
        found, blocks = noted.found.blocks, noted.target.matched_blocks
        if not found:
            if prompts and self._others is not None:
                self._others.look(routed, prompts[0].prompt, noted)
        elif max(different_lengths(found)) > blocks:
            noted.elsewhere = self._elsewhere(routed, found, blocks)

    def _elsewhere(
        self, routed: Routed, found: Mapping[HolderId, int], chosen: int
    ) -> Elsewhere | None:
        """Return the endpoint that held more than all candidates, and was none."""
        rows = routed.candidates.rows
        blocks, holder = longest(found)
        if holder in rows or blocks <= chosen or self._whereabouts is None:
            return None
        where = self._whereabouts.of(holder, routed)
        return None if where is None else Elsewhere(where[0], blocks, where[1])


def _hashed(secret: bytes, size: int, name: str | bytes) -> bytes:
    raw = name if isinstance(name, bytes) else name.encode(errors="surrogatepass")
    return blake2b(raw, digest_size=size, key=secret).digest()


def shortfall(record: Record, noted: DecidedRequest) -> int:
    """Return how many blocks less were delivered than were believed to be there."""
    usage = record.usage
    if usage is None or usage.cached is None or not noted.tells or not noted.block_size:
        return 0
    if record.prefill_target is not None:  # its blocks are another engine's
        return 0
    return -(-(record.reused_tokens - usage.cached) // noted.block_size)


def _prompts_of(routed: Routed, chosen: int) -> tuple[int, Sequence[Matched]]:
    """Return the block size of the chosen endpoint, and the prompts in it."""
    cut, prompts = routed.candidates.cuts.item(chosen), routed.prompts
    found = prompts.get(cut, ())
    if not found and len(prompts) == 1:
        cut, found = next(iter(prompts.items()))
    return block_size_of(cut), found


def _few(
    roster: Roster, candidates: Candidates, columns: Columns, chosen: int
) -> tuple[Roster, Columns, int]:
    """Return the candidates that are kept of very many, the chosen one first: all others are let go
    at once."""
    rows = nearest(candidates, chosen)
    return roster.of(rows), tuple([column.take(rows, axis=0) for column in columns]), 0
