"""Requests that pass -> their records, in the ring.

What a request was decided by is noted then (`Recorder.decided`), what has come of it when its
answer has ended (`add`). Both are only put aside: some dozens are packed together, when so many
have come, each second, and before anybody reads. What was believed to be in an engine's cache, and
was not, waits a moment longer: for the engine's events, which may tell why (`shortfalls`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from secrets import token_bytes
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inferway.metrics import Family, counter, gauge
from inferway.model import BlockKey, Candidates, Endpoint, HolderId, Prompt
from inferway.openai_api.paths import PARSERS, UNREAD
from inferway.records.decided import CandidatePacker, DecidedRequest, Elsewhere, Whose, nearest
from inferway.records.misses import of_decision
from inferway.records.packing import HAS_COSTS, MOST_ID, STREAMED, PackedRow
from inferway.records.record import Miss
from inferway.records.ring import RecordRing
from inferway.routing.journey import Journey, Routed
from inferway.routing.match import Matched
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.telemetry.answer_log import CLIENT_GONE, EndedAnswer

TOGETHER = 256  # are packed
MOST_CELLS = 16_384  # candidates of all that wait to be packed
MOST_HASHES = 4_096  # remembered
MOST_KEYS = 20_000  # of requests whose blocks are to be written
OTHER = "other"  # a path that is none of the API's
SESSION = b"x-session-id"
_PATHS = frozenset({*PARSERS, *UNREAD})
_COST, _TTFT, _TERMS = COST_MS.name, EXPECTED_TTFT_MS.name, TERMS_MS.name

MANY = 128  # candidates: of more, few are copied
Columns = tuple[bytes, ...]
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_NOBODYS: Whose = ("", b"", b"", 0)


class Whereabouts(Protocol):
    """Knows all endpoints (records.whereabouts)."""

    def num_endpoints(self) -> int: ...
    def of(self, holder: HolderId, routed: Routed) -> tuple[str, str] | None:
        """Return the name of a holder that was no candidate for the request, and why it was none;
        None if it has left."""


# Id, path, status, outcome, seconds, record, misses. A tuple: one is made for each request.
Ended = tuple[str, str, int, str, float, Record, tuple[Miss, ...]]


# Takes a request to which so many blocks less were delivered than were believed to be there, and
# hands it to `keep` later, with the reasons. False: it has too much to do.
Doubt = Callable[[Ended, DecidedRequest, int], bool]


class LooksElsewhere(Protocol):
    """Finds out whether a prompt that nobody holds is held under another salt or adapter."""

    def look(self, routed: Routed, prompt: Prompt, noted: DecidedRequest) -> None: ...


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
        self._noted: list[DecidedRequest] = []  # their candidates are not packed yet
        self._cells = 0
        self._loads: dict[int, Candidates] = {}  # one for each list of endpoints in `_noted`
        self._last_endpoints: Sequence[Endpoint] = ()  # of the last request of `_noted`
        self._last_numbers = b""  # of their names
        self._are_all = False  # nobody else is in the fleet
        self._ended: list[Ended] = []
        ring.settle = self.settle

    # what comes in

    def decided(self, journey: Journey, routed: Routed) -> DecidedRequest | None:
        """Note what the request was decided by (routing.journey.Keeper)."""
        candidates, decision, request = routed.candidates, routed.decision, routed.request
        target = decision.targets[0] if decision.targets else None
        row = None if target is None else candidates.rows.get(target.endpoint.holder)
        if target is None or row is None:
            return None
        added = candidates.added
        endpoints, score = candidates.endpoints, None if _COST in added else target.score
        if endpoints is not self._last_endpoints:
            self._come_to(candidates)
        size, items = _of_size(routed, candidates, row)
        columns: tuple[bytes, ...]
        if len(endpoints) > MANY:
            endpoints, row, columns = self._nearest(candidates, row)
        elif score is None:
            cost, ttft, terms = added[_COST], added[_TTFT], added[_TERMS]
            numbers, held = self._last_numbers, candidates.matched_blocks.tobytes()
            columns = (numbers, held, cost.tobytes(), ttft.tobytes(), terms.tobytes())
        else:
            columns = (self._last_numbers, candidates.matched_blocks.tobytes())
        keys: Sequence[BlockKey] = ()
        found, lower, elsewhere = _NOTHING, _NOTHING, None
        if len(items) == 1:
            match = items[0].found
            found, lower = match.blocks, match.lower
            blocks = target.matched_blocks
            if blocks or self.keeps_keys:
                keys = items[0].prompt.block_keys
            if not self._are_all and found and max(found.values()) > blocks:
                elsewhere = self._elsewhere(routed, found, blocks)
        noted = DecidedRequest(
            candidates.now,
            endpoints,
            row,
            columns,
            size,
            keys,
            found,
            lower,
            score,
            journey.tells_its_reuse,
            getattr(request.body, "truncate_prompt_tokens", None) is not None,
            self._whose(routed),
            self._packer.names,
            elsewhere,
        )
        if not found and items and self.others is not None:
            self.others.look(routed, items[0].prompt, noted)
        waiting = self._noted
        waiting.append(noted)
        self._cells += len(endpoints)
        if len(waiting) >= TOGETHER or self._cells >= MOST_CELLS:
            self._pack_candidates()
        return noted

    def add(self, answer: EndedAnswer) -> None:
        """Note what has come of a request (telemetry.answer_log.AnswerLog)."""
        record = answer.record
        if record is not None:
            ended = self._ended
            request_id, path, status = answer.request_id, answer.path, answer.status
            ended.append((request_id, path, status, answer.outcome, answer.seconds, record, ()))
            if len(ended) >= TOGETHER:
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
        if self.ring.fresh_names():
            self._packer.renew(self.ring.names)
        offset = self._wall_clock() - self._clock()
        first = self.ring.next_seq
        self.ring.extend([self._row(each, offset) for each in ended])
        if self.keeps_keys:
            if len(self.keys) >= MOST_KEYS:  # the disk is slow: these have no blocks there
                del self.keys[: MOST_KEYS // 2]
            for number, each in enumerate(ended, first):
                if isinstance(noted := each[5].kept, DecidedRequest) and noted.keys:
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

    def _come_to(self, candidates: Candidates) -> None:
        """Note what is the same for all requests of a moment that have these endpoints."""
        endpoints = self._last_endpoints = candidates.endpoints
        self._last_numbers = self._packer.numbers(endpoints)
        self._loads[id(endpoints)] = candidates
        elsewhere = self._whereabouts
        self._are_all = elsewhere is None or len(endpoints) >= elsewhere.num_endpoints()

    def _nearest(self, candidates: Candidates, row: int) -> tuple[list[Endpoint], int, Columns]:
        """Of very many candidates, those that may be kept, at once: all others are not copied."""
        added, held = candidates.added, candidates.matched_blocks
        cost = added.get(_COST)
        rows = nearest(cost, held, row)
        numbers = np.frombuffer(self._last_numbers, np.uint16)
        columns: list[NDArray[Any]] = [numbers, held]
        if cost is not None:
            columns += [cost, added[_TTFT], added[_TERMS]]
        endpoints = [candidates.endpoints[each] for each in rows.tolist()]
        return endpoints, 0, tuple([column.take(rows, axis=0).tobytes() for column in columns])

    def _pack_candidates(self) -> None:
        waiting, self._noted, self._cells = self._noted, [], 0
        self._packer.pack(waiting, self._loads.values())
        self._loads, self._last_endpoints = {}, ()

    def _row(self, ended: Ended, offset: float) -> PackedRow:
        request_id, path, status, outcome, seconds, record, missed = ended
        names, noted = self.ring.names, record.kept
        usage, target, prefill = record.usage, record.target, record.prefill_target
        number, opened = names.known, record.opened_at
        chosen, blocks, prompt_blocks = "", 0, 0
        if target is not None:
            chosen, blocks = target.endpoint.name, target.matched_blocks
            prompt_blocks = target.prompt_blocks
        reachable, reached = blocks, chosen
        flags = STREAMED if record.is_streamed else 0
        table, size, tiers, whose = b"", 0, None, _NOBODYS
        if isinstance(noted, DecidedRequest) and noted.names is names:
            table, size, tiers, whose = noted.packed, noted.block_size, noted.tiers, noted.whose
            if noted.score is None:
                flags |= HAS_COSTS
            if noted.reachable > reachable:
                reachable, reached = noted.reachable, noted.endpoints[noted.reached].name
            elsewhere = noted.elsewhere
            if elsewhere is not None and elsewhere.blocks > reachable:
                reachable, reached = elsewhere.blocks, elsewhere.endpoint
            if reachable > blocks or usage is None or usage.cached is None or noted.missed:
                missed = (*missed, *noted.missed, *of_decision(record, noted, blocks))
        self._count(missed)
        begun = record.first_at or record.begun_at
        return (
            opened + offset,
            request_id[:MOST_ID],
            number(record.known_model) or names.add(record.known_model),
            number(path) or names.add(path if path in _PATHS else OTHER),
            number(record.reason) or names.add(record.reason),
            number(whose[0]) or names.add(whose[0]),
            names.add(b",".join(record.edits).decode("latin-1")) if record.edits else 0,
            names.add(outcome or record.outcome or _outcome_of(status)),
            number(chosen) or names.add(chosen),
            0 if prefill is None else names.add(prefill.endpoint.name),
            (number(reached) or names.add(reached)) if reachable else 0,
            whose[1],
            whose[2],
            record.prompt_tokens or -1,
            prompt_blocks,
            size,
            int(record.waited * 1e6),
            int(record.decided_in * 1e6),
            int((begun - opened) * 1e6) if begun else -1,
            int(record.median * 1e6) or -1,
            int(record.longest * 1e6) or -1,
            int(seconds * 1e6),
            record.attempts,
            whose[3],
            reachable,
            blocks,
            -1 if usage is None or usage.cached is None else usage.cached,
            -1 if usage is None else usage.prompt,
            -1 if usage is None else usage.completion,
            status,
            flags,
            table,
            missed or None,
            tiers,
        )

    def _count(self, missed: Iterable[Miss]) -> None:
        for miss in missed:
            self.misses[miss.kind] += 1
            self.missed_blocks[miss.kind] += miss.blocks

    def _whose(self, routed: Routed) -> Whose:
        request, session = routed.request, b""
        for header in request.headers:
            if header[0] == SESSION:
                session = self._hash(header[1].decode("latin-1"), 8)
        tenant = request.tenant or request.body.cache_salt
        return (
            routed.decision.profile or self._picked_by,
            self._hash(tenant, 4) if tenant else b"",
            session,
            len(routed.candidates.endpoints),
        )

    def _elsewhere(
        self, routed: Routed, found: Mapping[HolderId, int], chosen: int
    ) -> Elsewhere | None:
        """Who held more than the chosen one and all others, and was no candidate."""
        rows = routed.candidates.rows
        blocks, holder = max((blocks, holder) for holder, blocks in found.items())
        if holder in rows or blocks <= chosen or self._whereabouts is None:
            return None
        where = self._whereabouts.of(holder, routed)
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


def shortfall(record: Record, noted: DecidedRequest) -> int:
    """Return how many blocks less were delivered than were believed to be there."""
    usage = record.usage
    if usage is None or usage.cached is None or not noted.tells or not noted.block_size:
        return 0
    if record.prefill_target is not None:  # its blocks are another engine's
        return 0
    return -(-(record.reused_tokens - usage.cached) // noted.block_size)


def _of_size(routed: Routed, candidates: Candidates, row: int) -> tuple[int, Sequence[Matched]]:
    """The block size of the chosen endpoint, and the prompts in it."""
    prompts = routed.prompts
    if len(prompts) == 1:
        for size, items in prompts.items():
            return size, items
    size = candidates.block_sizes.item(row)
    return size, prompts.get(size, ())


def _outcome_of(status: int) -> str:
    """Of an answer that no engine has given."""
    if status in (0, CLIENT_GONE):
        return "client_gone"
    return "error" if status >= 500 else "refused" if status >= 400 else "ok"
