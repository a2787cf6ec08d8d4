"""The decision table at the top of kv/events/stream.py, line by line, and then everything at once:
whatever the network does, a calm stream ends with beliefs that are true."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.kv.events.stream import (
    MAX_ATTEMPTS,
    Action,
    Apply,
    EventStream,
    Forget,
    Replay,
    StreamState,
    digest_of,
)


def batch(seq: int, life: str = "a") -> bytes:
    return f"{life}{seq}".encode()


def applied(seq: int, life: str = "a") -> Apply:
    return Apply(batch(seq, life))


def linked(*, can_replay: bool = True) -> EventStream:
    stream = EventStream(can_replay=can_replay)
    stream.resume()
    return stream


def in_step(first: int = 0, last: int = 2) -> EventStream:
    """A stream that has applied first..last, replayed, and is done with it."""
    stream = linked()
    for seq in range(first, last + 1):
        assert stream.replayed(seq, batch(seq)) == [applied(seq)]
    assert stream.replay_ended(True) == []
    return stream


def without_replay(first: int = 0, last: int = 2) -> EventStream:
    stream = linked(can_replay=False)
    for seq in range(first, last + 1):
        assert stream.live(seq, batch(seq)) == [applied(seq)]
    return stream


def resumed(stream: EventStream) -> EventStream:
    stream.lost()
    stream.resume()
    return stream


# first contact


def test_a_stream_that_was_never_linked_is_blind() -> None:
    assert EventStream().state is StreamState.BLIND


def test_first_contact_asks_for_everything() -> None:
    assert EventStream().resume() == [Replay(0)]


def test_a_stream_heard_from_its_first_batch_is_exact() -> None:
    assert in_step(first=0).state is StreamState.EXACT


def test_a_stream_joined_late_is_partial() -> None:
    assert in_step(first=7, last=9).state is StreamState.PARTIAL


def test_an_engine_that_has_published_nothing_is_known_exactly() -> None:
    stream = linked()

    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT
    assert stream.live(0, batch(0)) == [applied(0)]
    assert stream.state is StreamState.EXACT


def test_the_first_batches_may_be_lost_after_an_empty_replay() -> None:
    stream = linked()
    stream.replay_ended(True)

    assert stream.live(2, batch(2)) == [Replay(0)]


def test_a_live_batch_before_the_link_is_told_counts_as_the_link() -> None:
    assert EventStream().live(4, batch(4)) == [Replay(0)]


# live


def test_the_next_batch_is_applied() -> None:
    stream = in_step(last=2)

    assert stream.live(3, batch(3)) == [applied(3)]
    assert stream.last_seq == 3


def test_the_last_batch_again_is_nothing() -> None:
    assert in_step(last=2).live(2, batch(2)) == []


def test_a_gap_asks_for_a_replay_from_the_last_batch_inclusive() -> None:
    stream = in_step(last=2)

    assert stream.live(5, batch(5)) == [Replay(2)]
    assert stream.state is StreamState.REPAIRING


@pytest.mark.parametrize(("seq", "life"), [(2, "b"), (1, "a"), (0, "b")])
def test_a_number_that_was_there_already_asks_whether_it_is_the_same_life(
    seq: int, life: str
) -> None:
    assert in_step(last=2).live(seq, batch(seq, life)) == [Replay(2)]


def test_a_late_copy_leaves_everything_as_it_was() -> None:
    stream = in_step(last=2)
    stream.live(1, batch(1))

    assert stream.replayed(2, batch(2)) == []
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


# a replay that explains the gap


def test_live_batches_wait_for_the_replay_to_end() -> None:
    stream = in_step(last=2)
    stream.live(4, batch(4))

    assert stream.live(5, batch(5)) == []
    assert stream.replayed(2, batch(2)) == []
    assert stream.replayed(3, batch(3)) == [applied(3)]
    assert stream.replay_ended(True) == [applied(4), applied(5)]
    assert stream.state is StreamState.EXACT


def test_batches_both_live_and_replayed_are_applied_once() -> None:
    stream = in_step(last=2)
    stream.live(4, batch(4))
    stream.replayed(2, batch(2))

    assert stream.replayed(3, batch(3)) == [applied(3)]
    assert stream.replayed(4, batch(4)) == [applied(4)]
    assert stream.replay_ended(True) == []
    assert stream.live(5, batch(5)) == [applied(5)]


def test_answers_that_nobody_asked_for_are_nothing() -> None:
    stream = in_step(last=2)

    assert stream.replayed(3, batch(3)) == []
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


# a replay that shows another life


def test_other_bytes_under_the_last_number_are_a_restart() -> None:
    stream = resumed(in_step(last=2))

    assert stream.replayed(2, batch(2, "b")) == [Forget(), Replay(0)]
    assert stream.replayed(0, batch(0, "b")) == [applied(0, "b")]
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


def test_an_empty_replay_means_that_numbers_restarted_below() -> None:
    stream = resumed(in_step(last=2))

    assert stream.replay_ended(True) == [Forget(), Replay(0)]


def test_batches_held_from_the_old_life_go_with_it() -> None:
    stream = in_step(last=2)
    stream.live(4, batch(4))
    stream.replayed(2, batch(2, "b"))
    for seq in range(4):
        stream.replayed(seq, batch(seq, "b"))

    assert stream.replay_ended(True) == []
    assert stream.last_seq == 3


def test_a_restart_into_silence_is_an_exact_nothing() -> None:
    stream = resumed(in_step(last=2))
    stream.replay_ended(True)

    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


@pytest.mark.parametrize("is_linked_again", [True, False])
def test_what_a_process_held_that_has_ended_is_not_believed_until_a_replay_comes(
    is_linked_again: bool,
) -> None:
    stream = in_step(last=2)
    stream.lost()
    if is_linked_again:
        stream.resume()

    actions = stream.restarted()

    states = [stream.state]
    assert actions == [Forget(), Replay(0)][: 1 + is_linked_again]
    if not is_linked_again:
        assert stream.resume() == [Replay(0, attempt=1)]
    assert stream.replay_ended(True) == []
    assert [*states, stream.state] == [StreamState.BLIND, StreamState.EXACT]


def test_what_was_compared_since_the_process_ended_stays_believed() -> None:
    stream = resumed(in_step(last=2))
    stream.replayed(2, batch(2))
    stream.replay_ended(True)

    assert stream.restarted() == [Replay(2)]
    assert stream.state is StreamState.REPAIRING


def test_an_engine_that_forgot_the_gap_leaves_us_partial() -> None:
    stream = in_step(last=2)
    stream.live(90, batch(90))

    assert stream.replayed(89, batch(89)) == [Forget(), applied(89)]
    assert stream.replayed(90, batch(90)) == [applied(90)]
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.PARTIAL


# replays with faults of their own


def test_a_hole_inside_a_replay_is_asked_for_again() -> None:
    stream = resumed(in_step(last=2))
    for seq in (2, 3, 5, 6):
        stream.replayed(seq, batch(seq))

    assert stream.replay_ended(True) == [Replay(3)]
    assert stream.replayed(3, batch(3)) == []
    assert stream.replayed(4, batch(4)) == [applied(4)]
    assert stream.replay_ended(True) == [applied(5), applied(6)]
    assert stream.state is StreamState.EXACT


def test_a_missing_end_marker_is_asked_for_again() -> None:
    stream = linked()
    stream.replayed(0, batch(0))

    assert stream.replay_ended(False) == [Replay(0)]


def test_an_end_marker_that_never_comes_does_not_matter() -> None:
    stream = linked()
    actions: list[Action] = [Replay(0)]
    while actions:
        stream.replayed(0, batch(0))
        actions = stream.replay_ended(False)

    assert stream.state is StreamState.EXACT
    assert stream.stats.replays <= MAX_ATTEMPTS + 1


def test_a_hole_that_no_replay_fills_is_given_up() -> None:
    stream = in_step(last=2)
    stream.live(5, batch(5))
    stream.live(6, batch(6))
    seen: list[Action] = []
    for _ in range(MAX_ATTEMPTS):
        stream.replayed(2, batch(2))
        seen += stream.replay_ended(True)

    assert seen == [
        *(Replay(2, attempt) for attempt in range(2, MAX_ATTEMPTS + 1)),
        Forget(),
        applied(5),
        applied(6),
    ]
    assert stream.state is StreamState.PARTIAL


def test_a_replay_socket_that_never_answers_leaves_us_blind_but_listening() -> None:
    stream = resumed(in_step(last=2))
    seen: list[Action] = []
    for _ in range(MAX_ATTEMPTS):
        seen += stream.replay_ended(False)

    assert seen[-1] == Forget()
    assert stream.state is StreamState.BLIND
    assert stream.live(9, batch(9)) == [applied(9)]


def test_attempts_start_anew_when_a_replay_brings_something() -> None:
    stream = linked()
    last = 5 * MAX_ATTEMPTS
    for seq in range(last):
        stream.replayed(seq, batch(seq))

        assert stream.replay_ended(False) == [Replay(seq)]


def test_no_more_is_held_than_there_is_room_for() -> None:
    stream = EventStream(max_held_batches=2)
    stream.resume()
    for seq in range(1, 5):
        stream.live(seq, batch(seq))
    stream.replayed(0, batch(0))

    assert stream.replay_ended(True) == [Replay(0)]
    assert stream.replayed(0, batch(0)) == []
    assert [stream.replayed(seq, batch(seq)) for seq in range(1, 5)] == [
        [applied(seq)] for seq in range(1, 5)
    ]
    assert stream.replay_ended(True) == []


def test_bytes_held_are_bounded_too() -> None:
    stream = EventStream(max_held_bytes=3)
    stream.resume()
    stream.live(1, batch(1))
    stream.live(2, batch(2))
    stream.replayed(0, batch(0))

    assert stream.replay_ended(True) == [Replay(0)]


# the link


def test_a_lost_link_makes_what_we_believe_stale() -> None:
    stream = in_step(last=2)
    stream.lost()

    assert stream.state is StreamState.STALE


def test_without_a_link_no_replay_makes_what_we_believe_true() -> None:
    new, lost = EventStream(), in_step(0, 3)
    lost.lost()

    assert (new.recheck(), new.state) == ([], StreamState.BLIND)
    assert (lost.recheck(), lost.state) == ([], StreamState.STALE)


def test_with_a_link_a_doubt_asks_for_the_proof() -> None:
    stream = in_step(0, 3)

    assert stream.recheck() == [Replay(3)]


def test_a_link_that_returns_asks_whether_it_is_the_same_life() -> None:
    stream = in_step(last=2)
    stream.lost()

    assert stream.resume() == [Replay(2)]
    assert stream.replayed(2, batch(2)) == []
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


def test_answers_under_way_when_the_link_was_lost_are_nothing() -> None:
    stream = in_step(last=2)
    stream.live(5, batch(5))
    stream.lost()

    assert stream.replayed(2, batch(2)) == []
    assert stream.replay_ended(True) == []


def test_the_first_batch_after_a_lost_link_is_not_believed_before_the_proof() -> None:
    """A new life may have just the next number."""
    stream = in_step(last=2)
    stream.lost()

    assert stream.live(3, batch(3, "b")) == [Replay(2)]
    assert stream.replayed(2, batch(2, "b")) == [Forget(), Replay(0)]


# what the owner cannot read


def test_a_batch_that_cannot_be_read_counts_as_a_hole() -> None:
    stream = in_step(last=2)

    assert stream.live(3, batch(3, "x"), readable=False) == [Replay(2)]
    assert stream.replayed(2, batch(2)) == []
    assert stream.replayed(3, batch(3)) == [applied(3)]
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


def test_the_same_bytes_in_a_replay_are_what_the_engine_sends() -> None:
    stream = in_step(last=2)
    stream.live(3, batch(3, "x"), readable=False)
    stream.replayed(2, batch(2))

    assert stream.replayed(3, batch(3, "x"), readable=False) == [applied(3, "x")]
    assert stream.replay_ended(True) == []


def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    stream = linked()

    assert stream.replayed(0, batch(0, "x"), readable=False) == []
    assert stream.replayed(1, batch(1)) == []
    assert stream.replay_ended(True) == [Replay(0, attempt=2)]
    assert stream.replayed(0, batch(0, "x"), readable=False) == [applied(0, "x")]


def test_an_unreadable_batch_in_a_replay_that_never_comes_whole_is_given_up() -> None:
    stream = in_step(last=2)
    stream.live(4, batch(4))
    seen: list[Action] = []
    for attempt in range(MAX_ATTEMPTS):
        stream.replayed(2, batch(2))
        stream.replayed(3, batch(3, f"x{attempt}"), readable=False)
        seen += stream.replay_ended(True)

    assert seen[-1] == Forget()
    assert stream.state is StreamState.BLIND
    assert stream.live(9, batch(9)) == [applied(9)]


def test_what_was_held_in_doubt_is_not_applied() -> None:
    """Two lives under one number: what joins on may be of the wrong one."""
    stream = in_step(last=2)
    stream.live(5, batch(5))
    stream.live(3, batch(3))
    stream.live(3, batch(3, "b"))
    stream.replayed(2, batch(2))

    assert stream.replay_ended(True) == [Replay(2, attempt=2)]
    assert stream.replayed(2, batch(2, "b")) == [Forget(), Replay(0)]


# a picture from a snapshot


def test_a_restored_stream_is_stale_and_asks_for_the_proof() -> None:
    stream = EventStream()
    stream.restore(7, digest_of(batch(7)), from_start=True)

    assert (stream.state, stream.last_seq) == (StreamState.STALE, 7)
    assert stream.digest == digest_of(batch(7))
    assert stream.resume() == [Replay(7)]
    assert stream.replayed(7, batch(7)) == []
    assert stream.replayed(8, batch(8)) == [applied(8)]
    assert stream.replay_ended(True) == []
    assert stream.state is StreamState.EXACT


def test_a_restored_stream_of_another_life_is_forgotten() -> None:
    stream = EventStream()
    stream.restore(7, digest_of(batch(7)), from_start=True)
    stream.resume()

    assert stream.replayed(7, batch(7, "b")) == [Forget(), Replay(0)]


def test_without_a_replay_socket_a_snapshot_is_of_no_use() -> None:
    stream = EventStream(can_replay=False)
    stream.restore(7, digest_of(batch(7)), from_start=True)

    assert stream.resume() == [Forget()]


def test_a_cleared_cache_is_a_beginning() -> None:
    stream = in_step(first=7, last=9)
    stream.cleared()

    assert stream.state is StreamState.EXACT


# without a replay socket


def test_without_replay_any_batch_may_be_the_first() -> None:
    assert without_replay(first=0).state is StreamState.EXACT
    assert without_replay(first=1).state is StreamState.PARTIAL


def test_without_replay_a_gap_is_forgotten() -> None:
    stream = without_replay(last=2)

    assert stream.live(5, batch(5)) == [Forget(), applied(5)]
    assert stream.state is StreamState.PARTIAL


def test_without_replay_a_restart_is_seen_by_its_numbers() -> None:
    stream = without_replay(last=2)

    assert stream.live(0, batch(0, "b")) == [Forget(), applied(0, "b")]
    assert stream.state is StreamState.EXACT


def test_without_replay_a_lost_link_is_the_end_of_what_we_believed() -> None:
    stream = without_replay(last=2)
    stream.lost()

    assert stream.resume() == [Forget()]
    assert stream.state is StreamState.BLIND


# everything at once


@dataclass
class Engine:
    """Publishes what it does to a set of blocks; remembers its last batches."""

    room: int
    blocks: set[int] = field(default_factory=set)
    life: int = 0
    seq: int = 0
    recent: deque[tuple[int, bytes]] = field(default_factory=deque)

    def publish(self, add: int, remove: int) -> tuple[int, bytes]:
        self.blocks.add(add)
        self.blocks.discard(remove)
        message = (self.seq, msgspec.json.encode([self.life, self.seq, add, remove]))
        self.seq += 1
        self.recent.append(message)
        while len(self.recent) > self.room:
            self.recent.popleft()
        return message

    def restart(self) -> None:
        self.blocks.clear()
        self.recent.clear()
        self.life, self.seq = self.life + 1, 0


Message = tuple[int, bytes] | str  # "lost", "resume": what the monitor says


class World:
    """An engine, a network of ill will, and the owner of an EventStream."""

    def __init__(self, room: int, can_replay: bool, before: int) -> None:
        self.engine = Engine(room)
        for i in range(before):
            self.engine.publish(i % 7, (i * 3) % 7)
        self.stream = EventStream(can_replay=can_replay, max_held_batches=5)
        self.believed: set[int] = set()
        self.wire: deque[Message] = deque(["resume"])
        self.delayed: list[tuple[int, bytes]] = []
        self.wanted: Replay | None = None
        self.answers: deque[tuple[int, bytes]] | None = None
        self.complete = True

    def publish(self, add: int, remove: int, fate: str) -> None:
        message = self.engine.publish(add, remove)
        if fate == "late":
            self.delayed.append(message)
        else:
            self.wire.extend([message] * {"lost": 0, "doubled": 2}.get(fate, 1))

    def burst(self, add: int, count: int) -> None:
        for i in range(count):
            self.publish((add + i) % 7, (add + 2 * i) % 7, "fine")

    def settle(self) -> None:
        for _ in range(40):
            self.deliver()
            self.answer(set(), True)

    def late(self) -> None:
        self.wire.extend(self.delayed)
        self.delayed.clear()

    def restart(self) -> None:
        self.engine.restart()
        self.delayed.clear()
        self.wire.extend(["lost", "resume"])

    def deliver(self) -> None:
        if not self.wire:
            return
        message = self.wire.popleft()
        if message == "lost":
            self.stream.lost()
        elif message == "resume":
            self.do(self.stream.resume())
        elif isinstance(message, tuple):
            self.do(self.stream.live(*message))

    def answer(self, drops: set[int], complete: bool) -> None:
        """One answer of the replay that counts; it is served when the first is taken."""
        if self.wanted is None:
            return
        if self.answers is None:
            recent = [m for m in self.engine.recent if m[0] >= self.wanted.from_seq]
            # the first is never dropped: the queue it would be too much for is empty
            self.answers = deque(m for i, m in enumerate(recent) if not i or i not in drops)
            self.complete = complete
        if self.answers:
            self.do(self.stream.replayed(*self.answers.popleft()))
        else:
            self.wanted = self.answers = None
            self.do(self.stream.replay_ended(self.complete))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                _, _, add, remove = msgspec.json.decode(action.payload)
                self.believed.add(add)
                self.believed.discard(remove)
            elif isinstance(action, Forget):
                self.believed.clear()
            else:
                self.wanted, self.answers = action, None

    def calm(self) -> None:
        """From now on the network is well; one more batch, because a lost last one is silent."""
        self.late()
        for _ in range(2):
            for _ in range(12):
                self.settle()
            assert not self.wire
            assert self.wanted is None
            self.publish(99, -1, "fine")


def commands() -> st.SearchStrategy[list[tuple[object, ...]]]:
    small = st.integers(0, 6)
    fates = st.sampled_from(["fine", "fine", "lost", "doubled", "late"])
    return st.lists(
        st.one_of(
            st.tuples(st.just("publish"), small, small, fates),
            st.tuples(st.just("publish"), small, small, fates),
            st.tuples(st.just("deliver")),
            st.tuples(st.just("deliver")),
            st.tuples(st.just("answer"), st.sets(st.integers(0, 9), max_size=4), st.booleans()),
            st.tuples(st.just("burst"), small, st.integers(1, 12)),
            st.tuples(st.just("settle")),
            st.tuples(st.just("late")),
            st.tuples(st.just("restart")),
        ),
        max_size=40,
    )


@given(commands(), st.integers(1, 12), st.booleans(), st.integers(0, 20))
def test_once_calm_exact_is_the_truth_and_partial_is_nothing_but_the_truth(
    steps: list[tuple[object, ...]], room: int, can_replay: bool, before: int
) -> None:
    world = World(room, can_replay, before)
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
    world.calm()
    world.settle()

    assert world.stream.state in (StreamState.EXACT, StreamState.PARTIAL)
    assert 99 in world.believed
    assert world.believed <= world.engine.blocks
    if world.stream.state is StreamState.EXACT:
        assert world.believed == world.engine.blocks
