"""The order of one engine's event batches. No socket, no clock, no index.

vLLM numbers batches from 0 per process and has no epoch; its replay socket sends what is left
in a ring of recent batches, from a number on, and may drop some on the way. So we keep number
and digest of the last batch applied, and every resume asks for a replay *from that batch
inclusive*: only if it comes back unchanged is it the same life of the engine.

The owner of the sockets hands in what happens and does, in order, what comes back:

    not replaying            live batch is
      nothing known yet        any number        Apply (exact if it is 0, else partial)
      in step                  the next one      Apply
                               ahead             hold it, Replay(last)
                               the last, again   nothing
                               any other, below  Replay(last): a late copy, or another life
      link lost                any               as after `resume`
    replaying                any live batch      hold it

    first answer of a replay
      nothing known yet        any number        Apply (exact if it is 0, else partial: joined late)
      last known               same, same bytes  nothing: the same life
                               same, other bytes Forget, Replay(0): a restart
                               above             Forget, Apply: partial, the engine forgot the gap
                               below             nothing
    later answers            the next one        Apply
                             ahead               hold it: a hole inside the replay
                             below               nothing

    end of a replay
      all is explained                           Apply the held batches, which join on: in step
      no answer, end marker    nothing known     nothing: the engine has stored nothing yet, exact
                               last known        Forget, Replay(0): its numbers restarted below
      a hole left, no end marker, unreadable batches, or something odd was seen meanwhile
                                                 Replay(last), a bounded number of times without
                                                 progress; then what cannot be proved is given up:
        something odd was seen                   Forget: two lives may be mixed in it; blind
        answers, held batches join on            Apply them: only the end marker is missing
        held batches                             Forget, Apply the last unbroken run: partial
        no answer at all                         Forget (if anything was known): blind

An owner that cannot ask for replays says so (`can_replay`): where the table says Replay, what
we believe is forgotten and the batch at hand applied.

A batch that its owner cannot read counts as not come, live or replayed, until a replay brings
the same bytes: then it is what the engine sends, is applied in its turn, and what it may have
said is the owner's to judge (`follower`). When that has happened MAX_IN_VAIN times, and no replay
has brought a better copy of one meanwhile, it is no more asked for again.

After `restore` what we believe is stale: the first `resume` asks for the proof as after a lost
link. A Replay replaces the one before it: of that one, no more answers may come in.
Not seen from here: a restart with no lost link whose first batch has just the next number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import xxhash
from msgspec import Struct

MAX_ATTEMPTS = 4  # replays in a row that bring nothing new
MAX_IN_VAIN = 4  # unreadable batches that were as unreadable in a replay
MAX_UNREADABLE = 100  # remembered, to be known again in a replay
MAX_HELD_BATCHES = 20_000
MAX_HELD_BYTES = 64 * 1024 * 1024


class StreamState(StrEnum):
    """The degree to which our picture of an engine's cache is true."""

    EXACT = "exact"  # its cache as of its last batch
    PARTIAL = "partial"  # all true, but blocks stored before we joined are unknown
    REPAIRING = "repairing"  # being compared with the engine; older than what it does now
    STALE = "stale"  # from before the link was lost; nothing confirms it
    BLIND = "blind"  # nothing

    @property
    def is_settled(self) -> bool:
        """True if the picture is true as of the last batch, and nothing that the engine has told is
        still to be read."""
        return self in (StreamState.EXACT, StreamState.PARTIAL)


# Structs and not dataclasses, as in `kv.index.protocol`: one or two are made for every batch.


class Apply(Struct, frozen=True, gc=False):
    """Decode this batch and do what its events say."""

    payload: bytes


class Replay(Struct, frozen=True, gc=False):
    """Ask the engine for all batches from this number on; `attempt` counts from 1, those above
    it may wait a little."""

    from_seq: int
    attempt: int = 1


class Forget(Struct, frozen=True, gc=False):
    """The command to drop everything that is believed of this engine's cache, because none of it
    can be trusted."""


Action = Apply | Replay | Forget


def digest_of(payload: bytes) -> bytes:
    return xxhash.xxh3_128_digest(payload)


class _Last(Struct, frozen=True, gc=False):
    """The last batch applied."""

    seq: int
    digest: bytes


@dataclass(slots=True)
class StreamStats:
    """Plain integers, read when /metrics is scraped."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    restarts: int = 0
    forgotten: int = 0
    unreadable: int = 0  # batches that were asked for again, once for each time


@dataclass(slots=True)
class EventStream:
    """The state machine above. One owner feeds it, nobody else."""

    can_replay: bool = True
    max_held_batches: int = MAX_HELD_BATCHES
    max_held_bytes: int = MAX_HELD_BYTES
    stats: StreamStats = field(default_factory=StreamStats)
    _last: _Last | None = None
    _next: int | None = None  # None: any number may come first
    _from_start: bool = False  # all batches since the engine's start are applied
    _linked: bool = False
    _replaying: bool = False
    _answered: bool = False  # the replay's first answer has come
    _suspect: bool = False  # something was seen that only one more replay can explain
    _unproven: bool = False  # the replay's first answer could not be read
    _attempts: int = 0
    _next_before: int | None = None  # `_next` when the replay was asked for
    _held: dict[int, bytes] = field(default_factory=dict)
    _held_bytes: int = 0
    _unreadable: dict[int, bytes] = field(default_factory=dict)  # number -> digest
    _in_vain: int = 0

    @property
    def state(self) -> StreamState:
        if self._last is None and (self._replaying or not self._from_start):
            return StreamState.BLIND
        if not self._linked:
            return StreamState.STALE
        if self._replaying:
            return StreamState.REPAIRING
        return StreamState.EXACT if self._from_start else StreamState.PARTIAL

    @property
    def last_seq(self) -> int | None:
        """Number of the last batch applied."""
        return None if self._last is None else self._last.seq

    @property
    def digest(self) -> bytes | None:
        """The digest of the last batch applied: `digest_of` its payload."""
        return None if self._last is None else self._last.digest

    @property
    def from_start(self) -> bool:
        """True if everything that the engine has ever told is applied, so that the state is exact
        once the stream is in step."""
        return self._from_start

    def restore(self, seq: int, digest: bytes, from_start: bool) -> None:
        """Believe what was believed as of this batch, in a life of ours before. Call it before the
        link is up."""
        self._last, self._next, self._from_start = _Last(seq, digest), seq + 1, from_start

    def cleared(self) -> None:
        """Tell that the last batch applied said that the engine has dropped everything it held:
        nothing older is unknown."""
        self._from_start = self._last is not None

    def resume(self) -> list[Action]:
        """Tell that the link is new. Return what to do."""
        self._linked = True
        self._attempts = self._in_vain = 0
        if self.can_replay:
            return [self._ask()]
        return self._forget()

    def recheck(self) -> list[Action]:
        """Tell that what we believe is in doubt, and return what to do. Without a link it is in
        doubt until `resume`: a replay brings nothing of what is published after it."""
        return self.resume() if self._linked else []

    def restarted(self) -> list[Action]:
        """Tell that the engine's process has ended, and another one is there. Return what to do:
        what is not confirmed since a new link is forgotten at once, before a replay says so."""
        if self.state.is_settled:
            return self.recheck()
        if self._linked and self.can_replay:
            return self._restart()
        return self._forget()

    def lost(self) -> None:
        """Tell that the link is gone; `resume` when it is back. Answers under way will not come."""
        self._linked = False
        self._replaying = False
        self._drop_held()

    def live(self, seq: int, payload: bytes, readable: bool = True) -> list[Action]:
        """Take a batch that the engine has just published. Return what to do."""
        if not self._linked:
            return [*self.resume(), *self.live(seq, payload, readable)]
        if readable and seq == self._next and not self._replaying:
            return [self._apply(seq, payload)]
        counts = readable or self._is_last(seq, payload) or not self._is_worth_asking(seq, payload)
        if self._replaying:
            if counts:
                self._hold_live(seq, payload)
            else:
                self._suspect = True
            return []
        if not counts:
            return [self._ask()]
        if self._next is None or seq == self._next:
            return [self._apply(seq, payload)]
        if self._is_last(seq, payload):
            self.stats.duplicates += 1
            return []
        self.stats.gaps += seq > self._next
        if not self.can_replay:
            return [*self._forget(), self._apply(seq, payload)]
        if seq > self._next:
            self._hold(seq, payload)
        return [self._ask()]

    def replayed(self, seq: int, payload: bytes, readable: bool = True) -> list[Action]:
        """Take an answer to the last Replay. Return what to do."""
        if not self._replaying or (self._last is not None and seq < self._last.seq):
            return []
        if readable:
            self._in_vain *= seq not in self._unreadable
        elif not self._is_last(seq, payload) and not self._is_confirmed(seq, payload):
            self._suspect = True
            self._unproven |= not self._answered
            return []
        if self._unproven:
            self._hold(seq, payload)
            return []
        if not self._answered:
            return self._first_answer(seq, payload)
        if seq == self._next:
            return [self._apply(seq, payload)]
        if self._next is not None and seq > self._next:
            self._hold(seq, payload)
        return []

    def replay_ended(self, complete: bool) -> list[Action]:
        """Tell that no more answers come; `complete`: the engine's end marker was the last. Return
        what to do."""
        if not self._replaying:
            return []
        self._replaying = False
        if complete and not self._answered and not self._unproven:
            if self._last is not None:
                return self._restart()
            self._next, self._from_start = 0, True
        actions: list[Action] = []
        if complete and not self._suspect:
            actions = self._drain()
            if not self._held and not self._suspect:
                self._attempts = 0
                self._unreadable.clear()
                return actions
        if self._next != self._next_before:
            self._attempts = 0
        if self._attempts < MAX_ATTEMPTS:
            return [*actions, self._ask()]
        return [*actions, *self._give_up()]

    # what can happen

    def _first_answer(self, seq: int, payload: bytes) -> list[Action]:
        last = self._last
        if last is None:
            self._answered = True
            return [self._apply(seq, payload)]
        self._answered = True
        if seq > last.seq:
            return [*self._forget(), self._apply(seq, payload)]
        return [] if digest_of(payload) == last.digest else self._restart()

    def _apply(self, seq: int, payload: bytes) -> Apply:
        if self._last is None:
            self._from_start = seq == 0
        self._last = _Last(seq, digest_of(payload))
        self._next = seq + 1
        self.stats.applied += 1
        if self._held:
            held = self._unhold(seq)
            if held is not None and held != payload:
                self._suspect = True
        return Apply(payload)

    # batches that cannot be read

    def _is_worth_asking(self, seq: int, payload: bytes) -> bool:
        """Return whether a replay may bring a better copy; then this one is remembered."""
        full = len(self._unreadable) >= MAX_UNREADABLE
        if not self.can_replay or self._in_vain >= MAX_IN_VAIN or full:
            return False
        self._unreadable[seq] = digest_of(payload)
        self.stats.unreadable += 1
        return True

    def _is_confirmed(self, seq: int, payload: bytes) -> bool:
        """Return whether an answer that cannot be read is what the engine sends."""
        if self._unreadable.get(seq) == digest_of(payload):
            self._in_vain += 1
            return True
        return not self._is_worth_asking(seq, payload)

    # replays

    def _ask(self) -> Replay:
        self._replaying, self._answered = True, False
        self._suspect = self._unproven = False
        self._next_before = self._next
        self._attempts += 1
        self.stats.replays += 1
        return Replay(0 if self._last is None else self._last.seq, self._attempts)

    def _restart(self) -> list[Action]:
        self.stats.restarts += 1
        self._attempts = 0
        self._drop_held()
        return [*self._forget(), self._ask()]

    def _forget(self) -> list[Action]:
        """Forget what is believed, if anything; batches held are kept."""
        believed = self._last is not None
        self._last = self._next = None
        self._from_start = False
        self._unreadable.clear()
        self.stats.forgotten += believed
        return [Forget()] if believed else []

    def _give_up(self) -> list[Action]:
        """Replays do not explain what we saw."""
        in_doubt, self._attempts, self._suspect = self._suspect, 0, False
        if in_doubt:
            self._drop_held()
            return self._forget()
        actions: list[Action] = self._drain() if self._answered else []
        run = self._last_run() if self._held else []
        if run or not self._answered:
            actions += self._forget()
        actions += [self._apply(seq, payload) for seq, payload in run]
        self._drop_held()
        return actions

    # batches that came too early

    def _hold_live(self, seq: int, payload: bytes) -> None:
        held = self._held.get(seq)
        below = self._last is not None and seq <= self._last.seq
        if held not in (None, payload) or (below and not self._is_last(seq, payload)):
            self._suspect = True
        if not below:
            self._hold(seq, payload)

    def _hold(self, seq: int, payload: bytes) -> None:
        """Hold a batch back; when there is no more room it is asked for again instead."""
        self._unhold(seq)
        full = self._held_bytes + len(payload) > self.max_held_bytes
        if full or len(self._held) >= self.max_held_batches:
            self._suspect = True
            return
        self._held[seq] = payload
        self._held_bytes += len(payload)

    def _unhold(self, seq: int) -> bytes | None:
        payload = self._held.pop(seq, None)
        if payload is not None:
            self._held_bytes -= len(payload)
        return payload

    def _drain(self) -> list[Action]:
        """Held batches that join on; those below are of no more use."""
        actions: list[Action] = []
        while self._next is not None and (payload := self._held.get(self._next)) is not None:
            actions.append(self._apply(self._next, payload))
        for seq in [seq for seq in self._held if self._next is not None and seq < self._next]:
            self._unhold(seq)
        return actions

    def _last_run(self) -> list[tuple[int, bytes]]:
        """The highest held numbers without a hole between them."""
        seq = max(self._held)
        while seq - 1 in self._held:
            seq -= 1
        return sorted((held, payload) for held, payload in self._held.items() if held >= seq)

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def _is_last(self, seq: int, payload: bytes) -> bool:
        last = self._last
        return last is not None and seq == last.seq and digest_of(payload) == last.digest
