"""A drained engine's warm prefixes go to the other engines of its group, most valuable first.

Each is moved in two legs, as a request in two legs is (openai_api/kv_transfer.py): the drained
engine is asked for one token after the prefix, which costs it no more because it holds the prefix,
and keeps the blocks for whoever brings the reference that it answers with; another engine is asked
for the same with the reference, fetches the blocks, and tells in its events that it holds them.
From then on the prefix's next requests find them there.

value     tokens that no other engine holds, times how warm the prefix is (routing.warm_prefixes)
target    an engine of the same group, and role if there is one: that with the fewest requests, and
          of equal ones that which would have been given least. None in which blocks are scarce
at once   MOVES in all, MOVES_PER_TARGET to one engine. They are booked as other requests are, so
          that scheduling sees them

Nothing is moved after the time is up; what is under way ends. A reference is used at once, once, on
the one target, and not at all if it took longer to come than its lease may last.

An engine that fails STRIKES moves in a row is not asked again: the drained one, and the hand-over
has ended; another, and the rest goes elsewhere. A refused connection is as good as all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import uuid4

import msgspec

from inferway.errors import (
    BadReferenceError,
    NoEndpointError,
    UnknownModelError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.fleet.engine import Engine
from inferway.fleet.kv_transfer import host_of
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import (
    Candidates,
    Endpoint,
    HolderId,
    KvConnector,
    Prompt,
    Target,
    TokenIds,
    Tokenized,
)
from inferway.openai_api.kv_transfer import NIXL_PREFILL, read_reference
from inferway.openai_api.usage import usage_of
from inferway.routing.attempt import Attempt
from inferway.routing.director import Director
from inferway.routing.match import Matched
from inferway.routing.warm_prefixes import WarmPrefix
from inferway.scheduling.expected_ttft.legs import FULL
from inferway.tasks import TimeSlice

MOVES = 4
MOVES_PER_TARGET = 2
STRIKES = 3
# It is not worth two requests to move less: vLLM fetches no less either when it may choose
# (kv_recompute_threshold).
LEAST_TOKENS = 64
ROOM_SECONDS = 0.25  # until it is looked again whether an engine has room

log = logging.getLogger("inferway.hand_over")


class HandOverState(StrEnum):
    NONE = "none"  # nothing can be handed over; `why` says why
    RUNNING = "running"
    DONE = "done"  # nothing is left that is worth it
    OUT_OF_TIME = "out-of-time"
    STOPPED = "stopped"  # the engine gets requests again, or the gateway has ended
    FAILED = "failed"  # `why` says why


@dataclass(slots=True)
class Progress:
    """The progress of moving the warm prefixes of an engine that is drained."""

    state: HandOverState
    why: str = ""
    left: int = 0
    handed_over: int = 0
    failed: int = 0
    skipped: int = 0  # held elsewhere, or not there any more, when it was their turn
    tokens: int = 0  # that were fetched by other engines
    ends_at: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.state is HandOverState.RUNNING


# POSTs a body to an endpoint's /v1/completions, with the id of the request; returns status and body
# of the answer. Raises UpstreamError.
AskEngine = Callable[[Endpoint, bytes, str], Awaitable[tuple[int, bytes]]]


class _Held(msgspec.Struct, frozen=True):
    """What the drained engine has of a prefix, as of now."""

    source: Endpoint
    matched: Matched
    num_blocks: int  # there
    num_gained: int  # blocks of them that no other engine has
    candidates: Candidates


class _LegFailedError(Exception):
    """One leg of a move."""

    def __init__(
        self, endpoint: Endpoint, why: str, *, is_gone: bool = False, is_refused: bool = False
    ) -> None:
        """`is_gone`: the endpoint takes no connection; `is_refused`: it does not want this one."""
        super().__init__(why)
        self.endpoint = endpoint
        self.is_gone = is_gone
        self.is_refused = is_refused


def takers(source: Endpoint, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return those of the endpoints that can take the blocks of `source`: of its role, where there
    are such, for there its prefixes are looked for. With NIXL each engine gives blocks when it is
    asked to, whatever its role; but not each may take some (fleet/kv_transfer.py)."""
    own = source.kv_transfer
    if own is None:
        return []
    able = [
        (each, there.gives == own.gives and there.takes == own.takes)
        for each in endpoints
        if each.engine != source.engine
        and (there := each.kv_transfer) is not None
        and there.takes
        and (there.connector, there.group) == (own.connector, own.group)
    ]
    alike = [each for each, is_alike in able if is_alike]
    return alike or [each for each, _ in able]


def why_none(director: Director, engine: Engine) -> str | None:
    """Return why the engine can hand nothing over; None if it can."""
    with_connector = [each for each in engine.endpoints if each.kv_transfer is not None]
    if not with_connector:
        return "no connector is known by which it hands KV blocks to others"
    source = with_connector[0]
    connector = source.kv_transfer.connector if source.kv_transfer is not None else None
    if connector not in (KvConnector.NIXL, KvConnector.NIXL_PUSH):
        return f"it has {connector}; prefixes are handed over by nixl and nixl-push"
    for model in engine.model_names:
        try:
            if takers(source, director.candidates(model).endpoints):
                return None
        except NoEndpointError:
            continue
    return "no other engine that gets requests can take its KV blocks"


@dataclass(slots=True)
class HandOver:
    """The hand-over of one engine's warm prefixes. `run` it once; any task may read `progress`."""

    engine: Engine
    director: Director
    ask: AskEngine
    progress: Progress
    lease_margin: float  # seconds before its end in which a lease is not used
    _queue: deque[WarmPrefix] = field(default_factory=deque)
    _tried_again: set[WarmPrefix] = field(default_factory=set)
    _moving: Counter[HolderId] = field(default_factory=Counter)  # to each
    _given: Counter[HolderId] = field(default_factory=Counter)  # blocks, to each
    _strikes: Counter[HolderId] = field(default_factory=Counter)  # moves that failed in a row
    _move_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, prefixes: Sequence[WarmPrefix]) -> None:
        """Hand over those of them that are worth it. Cancelled, it gives back all that it took."""
        progress, name = self.progress, self.engine.name
        try:
            self._queue += await self._ranked(prefixes)
            progress.left = len(self._queue)
            log.info("engine %s hands over %d warm prefixes", name, progress.left)
            if not self._queue and progress.is_running:
                progress.why = "it alone holds no recent prompt"
            async with asyncio.TaskGroup() as group:
                for _ in range(MOVES):
                    group.create_task(self._work())
            if progress.is_running:
                progress.state = HandOverState.DONE
        finally:
            if progress.is_running:
                progress.state = HandOverState.STOPPED
            log.info(
                "engine %s has handed over %d warm prefixes with %d tokens; %d failed, %d are left"
                " (%s)",
                *(name, progress.handed_over, progress.tokens, progress.failed, progress.left),
                progress.why or progress.state,
            )

    async def _ranked(self, prefixes: Sequence[WarmPrefix]) -> list[WarmPrefix]:
        """Return those that only the engine holds, the most valuable first."""
        now, turn = self.director.clock(), TimeSlice()
        worth: list[tuple[float, WarmPrefix]] = []
        for prefix in prefixes:
            held = await self._held(prefix)
            if held is not None:
                worth.append((held.num_gained * prefix.warmth(now), prefix))
            if turn.is_over:
                await turn.rest()
        worth.sort(key=lambda each: each[0], reverse=True)
        return [prefix for _, prefix in worth]

    async def _held(self, prefix: WarmPrefix) -> _Held | None:
        """Return what there is to move of a prefix; None if that is nothing, or too little, or
        cannot be told, which ends the hand-over."""
        director, engine = self.director, self.engine
        try:
            model = director.fleet.model(prefix.model)
            candidates = director.candidates(model.name)
            num_tokens = len(prefix.token_ids) + 1
            candidates = director.eligible.fitting(candidates, model, num_tokens)
        except (UnknownModelError, NoEndpointError):
            return None
        tokenized = Tokenized([prefix.token_ids])
        lookup = await director.matcher.look_up(model, tokenized, prefix.cache_salt)
        cut, size = engine.cut, engine.block_size
        if cut is None or size is None or cut not in lookup.prompts or not engine.endpoints:
            return None
        [item] = lookup.prompts[cut]
        found = item.found.blocks
        source = max(engine.endpoints, key=lambda each: found.get(each.holder, 0))
        num_blocks = found.get(source.holder, 0)
        coming = director.matcher.overlay.extend(item.prompt.block_keys, found)
        others = max([coming.get(each.holder, 0) for each in candidates.endpoints], default=0)
        gained = num_blocks - others
        if gained * size < LEAST_TOKENS or not takers(source, candidates.endpoints):
            return None
        return _Held(source, item, num_blocks, gained, candidates)

    # the moves

    async def _work(self) -> None:
        while self._goes_on() and self._queue:
            prefix = self._queue.popleft()
            held = await self._held(prefix)
            target = None if held is None else self._target(held)
            if held is None and self.progress.is_running:
                self.progress.skipped += 1
                self.progress.left -= 1
            elif held is not None and target is not None:
                await self._move(prefix, held, target)
            else:
                self._queue.appendleft(prefix)
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Until a move has ended, or the engines' load was asked for again."""
        if self._goes_on():
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_SECONDS):
                    await self._move_ended.wait()

    def _goes_on(self) -> bool:
        progress = self.progress
        if not progress.is_running:
            return False
        if self.director.clock() >= progress.ends_at:
            self._end(HandOverState.OUT_OF_TIME)
        elif not self.engine.healthy:
            self._end(HandOverState.FAILED, "it does not answer, or is no longer in the list")
        return progress.is_running

    def _end(self, state: HandOverState, why: str = "") -> None:
        if self.progress.is_running:
            self.progress.state, self.progress.why = state, why

    def _target(self, held: _Held) -> Endpoint | None:
        """Return where to move it; None if no engine has room, or no engine is left, which ends
        the hand-over."""
        table = held.candidates
        able = takers(held.source, table.endpoints)
        able = [each for each in able if self._strikes[each.holder] < STRIKES]
        if not able:
            self._end(HandOverState.FAILED, "no engine is left that takes its KV blocks")
        rows = [
            row
            for row in (table.rows[each.holder] for each in able)
            if self._moving[table.endpoints[row].holder] < MOVES_PER_TARGET
            and table.kv_usage[row] < FULL
        ]
        found = held.matched.found.blocks

        def cost(row: int) -> tuple[float, int]:
            holder = table.endpoints[row].holder
            missing = held.num_blocks - found.get(holder, 0)
            return table.in_flight[row] + table.others[row], self._given[holder] + missing

        return table.endpoints[min(rows, key=cost)] if rows else None

    async def _move(self, prefix: WarmPrefix, held: _Held, target: Endpoint) -> None:
        progress, holder = self.progress, target.holder
        num_there = held.matched.found.blocks.get(holder, 0)
        keys = held.matched.prompt.block_keys[: held.num_blocks]
        coming = self._overlay.add(holder, keys, num_there)  # prefixes that share it need not wait
        self._moving[holder] += 1
        try:
            await self._two_legs(prefix, held, target)
        except _LegFailedError as e:
            self._failed(prefix, held, e)
            return
        finally:
            self._overlay.remove(coming)
            self._moving[holder] -= 1
            self._move_ended.set()
            self._move_ended = asyncio.Event()
        self._strikes[held.source.holder] = self._strikes[holder] = 0
        num_fetched = held.num_blocks - num_there
        self._given[holder] += num_fetched
        progress.tokens += num_fetched * (self.engine.block_size or 0)
        progress.handed_over += 1
        progress.left -= 1

    def _failed(self, prefix: WarmPrefix, held: _Held, error: _LegFailedError) -> None:
        at, source = error.endpoint, held.source
        log.warning("a prefix of engine %s was not handed over: %s", self.engine.name, error)
        self._strikes[at.holder] += STRIKES if error.is_gone else 1
        if at is source and self._strikes[source.holder] >= STRIKES:
            self._end(HandOverState.FAILED, str(error))
        if not (at is source or error.is_refused or prefix in self._tried_again):
            self._tried_again.add(prefix)
            self._queue.appendleft(prefix)
            return
        self.progress.failed += 1
        self.progress.left -= 1

    async def _two_legs(self, prefix: WarmPrefix, held: _Held, target: Endpoint) -> None:
        """Raises _LegFailedError."""
        source, size = held.source, self.engine.block_size or 0
        transfer = source.kv_transfer
        assert transfer is not None
        keys = held.matched.prompt.block_keys[: held.num_blocks]
        # one token more than the blocks: an engine computes the last one whatever it holds
        ids = prefix.token_ids[: len(keys) * size + 1]
        item = Matched(Prompt(ids, keys), held.matched.found)
        request_id = f"hand-over-{uuid4().hex}"
        sent_at = self.director.clock()
        answer = await self._leg(source, item, _body(prefix, ids, NIXL_PREFILL), request_id)
        # Of that time it is not known when the lease began: an old reference names others' blocks.
        if self.director.clock() - sent_at > transfer.lease_seconds - self.lease_margin:
            raise _LegFailedError(source, f"engine {source.name} took too long for its lease")
        hosts = transfer.hosts or (host_of(source.url),)
        try:
            reference = read_reference(
                answer, hosts, transfer.connector, num_tokens=len(ids), block_size=size
            )
        except BadReferenceError as e:
            raise _LegFailedError(source, f"engine {source.name}: {e}") from None
        if reference is None:
            words = f"engine {source.name} returned no kv_transfer_params"
            raise _LegFailedError(source, words)
        if (told := usage_of(answer)) is not None and told.prompt != len(ids):
            raise _LegFailedError(source, f"engine {source.name} computed another prompt")
        await self._leg(target, item, _body(prefix, ids, reference), request_id)

    async def _leg(self, endpoint: Endpoint, item: Matched, body: bytes, request_id: str) -> bytes:
        """Return the answer's body. It is booked as any request is, with one token to compute."""
        director, num_blocks = self.director, len(item.prompt.block_keys)
        attempt = Attempt(
            Target(endpoint, 0.0, num_blocks, num_blocks),
            body,
            {self.engine.cut or 0: [item]},
            False,
            director.fleet,
            self._overlay,
        )
        try:
            status, answer = await self.ask(endpoint, attempt.body, request_id)
            if status == 200:
                attempt.has_begun_to_answer(director.later)
        except UpstreamError as e:
            director.fleet.suspect(endpoint)
            is_gone = not isinstance(e, UpstreamTimeoutError)
            words = f"engine {endpoint.name}: {e}"
            raise _LegFailedError(endpoint, words, is_gone=is_gone) from None
        finally:
            attempt.end()
        if status != 200:
            is_refused = 400 <= status < 500 and status != 429
            words = f"engine {endpoint.name} answered {status}"
            raise _LegFailedError(endpoint, words, is_refused=is_refused)
        return answer

    @property
    def _overlay(self) -> SpeculativeOverlay:
        return self.director.matcher.overlay


def _body(prefix: WarmPrefix, ids: TokenIds, params: bytes) -> bytes:
    body: dict[str, Any] = {
        "model": prefix.model,
        "prompt": ids.tolist(),
        "max_tokens": 1,
        "temperature": 0,
        "kv_transfer_params": msgspec.Raw(params),
    }
    if prefix.cache_salt is not None:
        body["cache_salt"] = prefix.cache_salt
    return msgspec.json.encode(body)
