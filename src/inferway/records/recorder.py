"""Requests that pass -> their records, in the ring.

What a request was decided by is noted then (`Recorder.decided`), what has come of it when its
answer has ended (`add`). Both are only put aside: some dozens are packed together, when so many
have come, each second, and before anybody reads. What was believed to be in an engine's cache, and
was not, waits a moment longer: for the engine's events, which may tell why (`shortfalls`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from secrets import token_bytes
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from inferway.metrics import Family, counter, gauge
from inferway.model import BlockKey, HolderId, Prompt
from inferway.openai_api.paths import PARSERS, UNREAD
from inferway.openai_api.usage import Usage
from inferway.records.misses import of_decision
from inferway.records.noted import CandidatePacker, Elsewhere, Noted, Whose
from inferway.records.packing import (
    CANDIDATE,
    HAS_COSTS,
    HEAD,
    MISSED,
    MOST_ID,
    MOST_MS,
    STREAMED,
    Packed,
    Rest,
    packed_rest,
)
from inferway.records.record import Miss, MissKind
from inferway.records.ring import RecordRing
from inferway.routing.journey import Journey, Routed
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.telemetry.answer_log import CLIENT_GONE, EndedAnswer

TOGETHER = 64  # are packed
MOST_CELLS = 16_384  # candidates of all that wait to be packed
MOST_HASHES = 4_096  # remembered
OTHER = "other"  # a path that is none of the API's
SESSION = b"x-session-id"
_PATHS = frozenset({*PARSERS, *UNREAD})
_NO_HASH4, _NO_HASH8 = b"\0" * 4, b"\0" * 8
_EMPTY: tuple[()] = ()

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_NOBODYS = Whose()

# Returns the name of a holder that was no candidate for a request, and why; None: it has left.
Whereabouts = Callable[[HolderId, Routed], tuple[str, str] | None]


class Ended(msgspec.Struct, frozen=True):
    """A request whose answer has ended."""

    request_id: str
    path: str
    status: int
    outcome: str
    seconds: float
    record: Record
    misses: tuple[Miss, ...] = ()  # why less was delivered than was believed


# Takes a request to which so many blocks less were delivered than were believed to be there, and
# hands it to `keep` later, with the reasons. False: it has too much to do.
Doubt = Callable[[Ended, Noted, int], bool]


class LooksElsewhere(Protocol):
    """Finds out whether a prompt that nobody holds is held under another salt or adapter."""

    def look(self, routed: Routed, prompt: Prompt, noted: Noted) -> None: ...


class Recorder:
    """An AnswerLog, and the director's Keeper. `clock` is the director's."""

    def __init__(
        self,
        ring: RecordRing,
        clock: Callable[[], float],
        *,
        picked_by: str = "",
        whereabouts: Whereabouts | None = None,
        wall_clock: Callable[[], float] = time.time,
        secret: bytes | None = None,
    ) -> None:
        """`picked_by`: who chooses endpoints, if no profile is named; `secret`: what tenants and
        sessions are hashed with."""
        self.ring = ring
        self.keeps_keys = False  # of blocks, of all requests: for the files
        self.keys: list[tuple[int, Sequence[BlockKey]]] = []  # record's number, its blocks
        self.others: LooksElsewhere | None = None
        self.doubt: Doubt | None = None  # None: nobody looks into what was not delivered
        self.misses: Counter[str] = Counter()  # by kind
        self.missed_blocks: Counter[str] = Counter()
        self._clock = clock
        self._wall_clock = wall_clock
        self._picked_by = picked_by
        self._whereabouts = whereabouts
        self._secret = token_bytes(16) if secret is None else secret
        self._hashes: dict[tuple[str, int], bytes] = {}
        self._packer = CandidatePacker(ring.names)
        self._noted: list[Noted] = []  # their candidates are not packed yet
        self._cells = 0
        self._ended: list[Ended] = []
        ring.settle = self.settle

    # what comes in

    def decided(self, journey: Journey, routed: Routed) -> Noted | None:
        """Note what the request was decided by (routing.journey.Keeper)."""
        candidates, decision, request = routed.candidates, routed.decision, routed.request
        if not decision.targets:
            return None
        target = decision.targets[0]
        holder = target.endpoint.holder
        row = candidates.rows.get(holder)
        if row is None:
            return None
        added = candidates.added
        costs = None
        if (cost := added.get(COST_MS.name)) is not None:
            costs = (cost, added[EXPECTED_TTFT_MS.name], added[TERMS_MS.name])
        size = candidates.block_sizes.item(row)
        items = routed.prompts.get(size, _EMPTY)
        keys: Sequence[BlockKey] = _EMPTY
        found, lower, elsewhere = _NOTHING, _NOTHING, None
        if len(items) == 1:
            match = items[0].found
            found, lower = match.blocks, match.lower
            if target.matched_blocks or self.keeps_keys:
                keys = items[0].prompt.block_keys
            if found and not found.keys() <= candidates.rows.keys():
                elsewhere = self._elsewhere(routed, found, target.matched_blocks)
        noted = Noted(
            *(candidates.now, candidates.endpoints, row, candidates.matched_blocks, costs),
            (candidates.running.tobytes(), candidates.waiting.tobytes()),
            *(keys, found, lower, _EMPTY if costs else (target.score,)),
            candidates.states.item(row),
            journey.tells_its_reuse,
            getattr(request.body, "truncate_prompt_tokens", None) is not None,
            self._whose(routed, len(candidates.endpoints), size),
            elsewhere,
        )
        if not found and items and self.others is not None:
            self.others.look(routed, items[0].prompt, noted)
        waiting = self._noted
        waiting.append(noted)
        self._cells += len(candidates.endpoints)
        if len(waiting) >= TOGETHER or self._cells >= MOST_CELLS:
            self._pack_candidates()
        return noted

    def add(self, answer: EndedAnswer) -> None:
        """Note what has come of a request (telemetry.answer_log.AnswerLog)."""
        record = answer.record
        if record is None:
            return
        self._ended.append(
            Ended(
                *(answer.request_id, answer.path, answer.status, answer.outcome),
                *(answer.seconds, record),
            )
        )
        if len(self._ended) >= TOGETHER:
            self.settle()

    def flush(self) -> None:
        """Pack what waits."""
        self.settle()

    # what becomes of it

    def settle(self) -> None:
        """Put what has ended into the ring."""
        if self._noted:
            self._pack_candidates()
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        if self.doubt is not None:
            ended = [each for each in ended if not self._is_doubted(each)]
        self.keep(ended)

    def _is_doubted(self, ended: Ended) -> bool:
        record, noted = ended.record, ended.record.kept
        if self.doubt is None or not isinstance(noted, Noted):
            return False
        short = shortfall(record, noted)
        return short > 0 and self.doubt(ended, noted, short)

    def keep(self, ended: Sequence[Ended]) -> None:
        """Put these into the ring, with what has been found out of them."""
        if not ended:
            return
        if self.ring.fresh_names():
            self._packer.renew(self.ring.names)
        offset = self._wall_clock() - self._clock()
        first = self.ring.next_seq
        self.ring.extend([self._packed(each, offset) for each in ended])
        if self.keeps_keys:
            for number, each in enumerate(ended, first):
                if isinstance(noted := each.record.kept, Noted) and noted.keys:
                    self.keys.append((number, noted.keys))

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of records, and of what was not reused."""
        self.settle()
        yield gauge("records", "Records of requests that are kept in memory.", value=len(self.ring))
        yield gauge("records_bytes", "Bytes of the records in memory.", value=self.ring.num_bytes)
        text = " that reused less of their prompts than they could have, by the reason."
        kinds = {(kind,): number for kind, number in self.misses.items()}
        yield counter("missed_requests", f"Requests{text}", ["kind"], kinds)
        blocks = {(kind,): number for kind, number in self.missed_blocks.items()}
        yield counter("missed_blocks", f"Blocks of requests{text}", ["kind"], blocks)

    def _pack_candidates(self) -> None:
        waiting, self._noted, self._cells = self._noted, [], 0
        self._packer.pack(waiting)

    def _packed(self, ended: Ended, offset: float) -> Packed:
        record, noted, name = ended.record, ended.record.kept, self.ring.names.add
        request_id = ended.request_id.encode(errors="replace")[:MOST_ID]
        target, prefill = record.target, record.prefill_target
        chosen, blocks = (
            ("", 0) if target is None else (target.endpoint.name, target.matched_blocks)
        )
        reachable, reached = blocks, chosen
        flags, table, rest, whose = STREAMED * record.is_streamed, b"", b"", _NOBODYS
        if isinstance(noted, Noted) and noted.names is self.ring.names:
            table, whose = noted.packed or b"", noted.whose
            flags |= HAS_COSTS * (not noted.scores)
            reachable, reached = _reachable(noted, reachable, reached)
            missed = (*ended.misses, *noted.missed, *of_decision(record, noted, blocks))
            if missed or noted.tiers:
                flags |= self._count(missed)
                rest = packed_rest(Rest(missed, noted.tiers))
        head = HEAD.pack(
            record.opened_at + offset,
            len(request_id),
            len(table) // CANDIDATE.itemsize,
            len(rest),
            name(record.known_model),
            name(ended.path if ended.path in _PATHS else OTHER),
            name(record.reason),
            name(whose.picked_by),
            name(b",".join(record.edits).decode("latin-1")) if record.edits else 0,
            name(ended.outcome or record.outcome or _outcome_of(ended.status)),
            name(chosen),
            0 if prefill is None else name(prefill.endpoint.name),
            name(reached) if reachable else 0,
            whose.tenant,
            whose.session,
            record.prompt_tokens or -1,
            0 if target is None else target.prompt_blocks,
            whose.block_size,
            *_times(record, ended.seconds),
            min(record.attempts, 255),
            whose.num_candidates,
            reachable,
            blocks,
            *_counted(record.usage),
            ended.status,
            flags,
        )
        return Packed(head, request_id + table + rest)

    def _count(self, missed: Sequence[Miss]) -> int:
        """Count the misses; return the flags that say of them."""
        flags = 0
        for miss in missed:
            self.misses[miss.kind] += 1
            self.missed_blocks[miss.kind] += miss.blocks
            if miss.kind != MissKind.SILENT:
                flags = MISSED
        return flags

    def _whose(self, routed: Routed, num_candidates: int, block_size: int) -> Whose:
        request = routed.request
        session = _NO_HASH8
        for name, value in request.headers:
            if name == SESSION:
                session = self._hash(value.decode("latin-1"), 8)
        tenant = request.tenant or request.body.cache_salt
        return Whose(
            routed.decision.profile or self._picked_by,
            self._hash(tenant, 4) if tenant else _NO_HASH4,
            session,
            num_candidates,
            block_size,
        )

    def _elsewhere(
        self, routed: Routed, found: Mapping[HolderId, int], chosen: int
    ) -> Elsewhere | None:
        """Who held more than the chosen one and all others, and was no candidate."""
        rows = routed.candidates.rows
        blocks, holder = max((blocks, holder) for holder, blocks in found.items())
        if holder in rows or blocks <= chosen or self._whereabouts is None:
            return None
        where = self._whereabouts(holder, routed)
        return None if where is None else Elsewhere(where[0], blocks, where[1])

    def _hash(self, text: str, size: int) -> bytes:
        """A keyed hash; hashes of late are remembered."""
        found = self._hashes.get((text, size))
        if found is None:
            if len(self._hashes) >= MOST_HASHES:
                self._hashes.clear()
            raw = text.encode(errors="surrogatepass")
            found = blake2b(raw, digest_size=size, key=self._secret).digest()
            self._hashes[text, size] = found
        return found


def shortfall(record: Record, noted: Noted) -> int:
    """Return how many blocks less were delivered than were believed to be there."""
    usage = record.usage
    if usage is None or usage.cached is None or not noted.tells or not noted.block_size:
        return 0
    if record.prefill_target is not None:  # its blocks are another engine's
        return 0
    return -(-(record.reused_tokens - usage.cached) // noted.block_size)


def _reachable(noted: Noted, reachable: int, reached: str) -> tuple[int, str]:
    """The longest prefix, and who held it: the chosen one, if nobody held more."""
    if noted.reachable > reachable:
        reachable, reached = noted.reachable, noted.endpoints[noted.reached].name
    elsewhere = noted.elsewhere
    if elsewhere is not None and elsewhere.blocks > reachable:
        return elsewhere.blocks, elsewhere.endpoint
    return reachable, reached


def _times(record: Record, seconds: float) -> tuple[float, float, float, float, float, float]:
    """Waited, decided, TTFT, of ITL the median and the longest, total: in ms."""
    ttft = (record.first_at or record.begun_at) - record.opened_at
    waited, decided = min(record.waited * 1000, MOST_MS), min(record.decided_in * 1000, MOST_MS)
    ttft = ttft * 1000 if ttft > 0 else -1.0
    if not record.longest:
        return waited, decided, ttft, -1.0, -1.0, seconds * 1000
    median, longest = min(record.median * 1000, MOST_MS), min(record.longest * 1000, MOST_MS)
    return waited, decided, ttft, median, longest, seconds * 1000


def _counted(usage: Usage | None) -> tuple[int, int, int]:
    """Tokens delivered, of the prompt, of the answer."""
    if usage is None:
        return -1, -1, -1
    return -1 if usage.cached is None else usage.cached, usage.prompt, usage.completion


def _outcome_of(status: int) -> str:
    """Of an answer that no engine has given."""
    if status in (0, CLIENT_GONE):
        return "client_gone"
    return "error" if status >= 500 else "refused" if status >= 400 else "ok"
