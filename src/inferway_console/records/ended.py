"""An ended request and its decision -> its row, and how much less it reused than it could have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import floor

from inferway.extension import CLIENT_GONE
from inferway.kv.index.protocol import MatchResult
from inferway.model import Endpoint, Target
from inferway.openai_api.kinds import KINDS
from inferway.routing.record import Record
from inferway_console.records.decided import NOBODY, DecidedRequest
from inferway_console.records.misses import of_decision
from inferway_console.records.packing import MOST_ID, Names, PackedRow, RequestKind
from inferway_console.records.record import Miss

OTHER = "other"  # a path that is none of the API's
_PATHS = frozenset(KINDS)

# Id, path, status, outcome, seconds, record, misses. A tuple: one is made for each request.
Ended = tuple[str, str, int, str, float, Record, tuple[Miss, ...]]

_NOWHERE = Target(Endpoint("", "", -1), 0.0, 0, 0)
# What is known of a request whose candidates were not noted.
_NOT_NOTED = DecidedRequest(
    *(0.0, _NOWHERE, NOBODY, 0, 0, "", (b"", b""), MatchResult(), ()),
    tells=False,
    may_cut=False,
    has_costs=False,
)


class EndedPacker:
    """Makes rows of requests that have ended, and counts what was missed."""

    def __init__(self) -> None:
        self.misses: Counter[str] = Counter()  # by kind
        self.missed_blocks: Counter[str] = Counter()

    def row(self, ended: Ended, names: Names, offset: float) -> PackedRow:
        """Return the row of a request, whose names get numbers of `names`. `offset`: the Unix time
        at which the director's clock was 0."""
        request_id, _, _, _, seconds, record, missed = ended
        target, usage, opened = record.target or _NOWHERE, record.usage, record.opened_at
        noted = record.kept
        if not isinstance(noted, DecidedRequest) or noted.roster.names is not names:
            noted = _NOT_NOTED
        blocks, is_first = target.matched_blocks, target is noted.target
        number = names.add
        chosen = noted.roster.numbers[noted.chosen] if is_first else number(target.endpoint.name)
        reachable, reached = blocks, chosen
        if noted.surpassed is not None or noted.elsewhere is not None or not is_first:
            reachable, reached = _reach(noted, blocks, chosen, names)
        is_unclear = usage is None or usage.cached is None or noted.missed or noted.found.reuse
        if reachable > blocks or is_unclear:
            missed = (*missed, *noted.missed, *of_decision(record, noted, blocks))
        if missed:
            self._count(missed)
        begun, prefill = record.first_at or record.begun_at, record.prefill_target
        return (
            opened + offset,
            request_id[:MOST_ID],
            _kind(ended, noted, names),
            chosen,
            0 if prefill is None else number(prefill.endpoint.name),
            reached if reachable else 0,
            noted.whose,
            record.prompt_tokens or -1,
            target.prompt_blocks,
            noted.block_size,
            floor(record.waited * 1e6),
            floor(record.decided_in * 1e6),
            floor((begun - opened) * 1e6) if begun else -1,
            floor(record.median * 1e6) or -1,
            floor(record.longest * 1e6) or -1,
            floor(seconds * 1e6),
            noted.roster.total,
            reachable,
            blocks,
            usage,
            noted.packed,
            missed or None,
            noted.tiers,
        )

    def _count(self, missed: Iterable[Miss]) -> None:
        for miss in missed:
            self.misses[miss.kind] += 1
            self.missed_blocks[miss.kind] += miss.blocks


def _kind(ended: Ended, noted: DecidedRequest, names: Names) -> int:
    """Return the number of what the request has in common with others."""
    _, path, status, outcome, _, record, _ = ended
    kind = (
        record.known_model,
        path if path in _PATHS else OTHER,
        record.reason,
        noted.picked_by,
        tuple(record.edits),
        outcome or record.outcome or _outcome_of(status),
        status,
        record.attempts,
        record.is_streamed,
        noted.has_costs,
        record.continued,
    )
    return names.known_kind(kind) or names.add_kind(RequestKind(*kind))


def _reach(noted: DecidedRequest, blocks: int, chosen: int, names: Names) -> tuple[int, int]:
    """Return how many blocks of the prompt were held anywhere, and the number of who held them;
    `chosen` held `blocks`."""
    reachable, reached = blocks, chosen
    if noted.reachable > reachable:
        reachable, reached = noted.reachable, names.add(noted.reached.name)
    elsewhere = noted.elsewhere
    if elsewhere is not None and elsewhere.blocks > reachable:
        reachable, reached = elsewhere.blocks, names.add(elsewhere.endpoint)
    return reachable, reached


def _outcome_of(status: int) -> str:
    """Return the outcome of an answer that no engine has given."""
    if status in (0, CLIENT_GONE):
        return "client_gone"
    return "error" if status >= 500 else "refused" if status >= 400 else "ok"
