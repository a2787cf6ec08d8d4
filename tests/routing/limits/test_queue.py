"""Whose turn it is: by priority, then fair between tenants, then in order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from inferway.routing.limits.queue import FairQueue, Waiter


def waiter(tenant: str = "t", priority: int = 0, lane: str = "m") -> Waiter:
    return Waiter(lane, tenant, priority, deadline=1e9, came=0.0)


def queued(*waiters: Waiter) -> FairQueue:
    queue = FairQueue()
    for each in waiters:
        queue.add(each)
    return queue


def always(_: str) -> bool:
    return True


def drawn(queue: FairQueue, count: int) -> list[str]:
    """The tenants of the next so many."""
    popped = [queue.pop(always) for _ in range(count)]
    return [each.tenant for each in popped if each is not None]


def test_one_tenants_requests_go_in_order() -> None:
    waiters = [waiter() for _ in range(5)]
    queue = queued(*waiters)

    assert [queue.pop(always) for _ in range(6)] == [*waiters, None]


def test_a_higher_priority_goes_first() -> None:
    low, high, middle = waiter(priority=-1), waiter(priority=2), waiter()
    queue = queued(low, high, middle)

    assert [queue.pop(always) for _ in range(3)] == [high, middle, low]


def test_tenants_take_turns_however_many_one_has() -> None:
    queue = queued(*[waiter("a") for _ in range(6)], waiter("b"), waiter("b"), waiter("c"))

    assert drawn(queue, 9) == ["a", "b", "c", "a", "b", "a", "a", "a", "a"]


def test_who_comes_later_does_not_make_up_for_what_he_did_not_ask() -> None:
    queue = queued(*[waiter("a") for _ in range(6)])
    drawn(queue, 4)
    for _ in range(3):
        queue.add(waiter("b"))

    assert drawn(queue, 5) == ["b", "a", "b", "a", "b"]


def test_who_waits_for_a_full_model_holds_up_nobody() -> None:
    first, second = waiter(lane="full"), waiter(lane="free")
    queue = queued(first, second)

    assert queue.pop(lambda lane: lane == "free") is second
    assert queue.pop(lambda lane: lane == "free") is None
    assert queue.pop(always) is first


def test_who_leaves_is_gone_and_costs_his_tenant_nothing() -> None:
    gone, stays, other = waiter("a"), waiter("a"), waiter("b")
    queue = queued(gone, stays, other)

    assert queue.remove(gone)
    assert not queue.remove(gone)
    assert [queue.pop(always) for _ in range(2)] == [stays, other]


def test_a_newcomer_displaces_the_newest_of_a_lower_priority() -> None:
    newest = waiter("a", -1)
    queue = queued(waiter("a", -1), newest, waiter("b", -1), waiter("b", 0))

    assert queue.victim(0, "c") is newest


def test_a_newcomer_displaces_the_newest_of_a_tenant_with_more() -> None:
    newest = waiter("a", lane="other")
    queue = queued(waiter("a"), newest, waiter("b"))

    assert queue.victim(0, "c") is newest
    assert queue.victim(0, "b") is None  # then it would have more itself
    assert queue.victim(0, "a") is None
    assert queue.victim(-1, "c") is None


def test_ahead_are_those_that_would_go_first() -> None:
    queue = queued(
        *[waiter("a") for _ in range(3)],
        waiter("b"),
        waiter("b", 1),
        waiter("b", -1),
        waiter("c", lane="other"),
    )

    assert queue.ahead("m", 0, "a") == 3 + 1 + 1
    assert queue.ahead("m", 0, "new") == 1 + 1 + 1
    assert queue.ahead("m", 2, "a") == 0
    assert queue.ahead("other", 0, "a") == 1


TENANTS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TENANTS, st.integers(-1, 1), st.sampled_from(["m", "n"])),
        st.tuples(st.just("pop"), st.sampled_from(["m", "n", "both"])),
        st.tuples(st.just("leave"), st.integers(0, 30)),
    ),
    max_size=80,
)


@given(STEPS)
def test_it_keeps_count_and_always_gives_the_highest_priority(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    queue, inside = FairQueue(), []
    for step in steps:
        if step[0] == "add":
            inside.append(waiter(*step[1:]))
            queue.add(inside[-1])
        elif step[0] == "leave" and inside:
            gone = inside.pop(step[1] % len(inside))
            assert queue.remove(gone)
        elif step[0] == "pop":
            open_to = [each for each in inside if step[1] in ("both", each.lane)]
            popped = queue.pop(lambda lane, only=step[1]: only in ("both", lane))  # type: ignore[misc]
            assert (popped is None) == (not open_to)
            if popped is not None:
                assert popped in open_to
                assert popped.priority == max(each.priority for each in open_to)
                same = [e for e in open_to if (e.tenant, e.lane, e.priority)
                        == (popped.tenant, popped.lane, popped.priority)]  # fmt: skip
                assert popped is same[0]
                inside.remove(popped)
        assert queue.size == len(inside) == sum(queue.sizes().values())
        assert sorted(queue, key=id) == sorted(inside, key=id)
        assert queue.lanes() == {each.lane for each in inside}


@given(
    st.lists(st.tuples(TENANTS, st.integers(0, 8)), min_size=1, max_size=40),
    st.sampled_from(["m", "n"]),
)
def test_tenants_that_keep_waiting_are_served_alike(
    arrivals: list[tuple[str, int]], lane: str
) -> None:
    """Never more than one apart, from when both had something waiting on."""
    queue = queued(*(waiter(tenant, lane=lane) for tenant in "abc" for _ in range(400)))
    served: Counter[str] = Counter(dict.fromkeys("abc", 0))
    for tenant, pops in arrivals:
        queue.add(waiter(tenant, lane=lane))  # who asks more does not get more
        served.update(drawn(queue, pops))
        assert max(served.values()) - min(served.values()) <= 1


def test_who_comes_and_goes_leaves_nothing_while_others_wait() -> None:
    queue = queued(waiter("stays"))
    for number in range(1000):
        gone = waiter(f"tenant {number}")
        queue.add(gone)
        queue.remove(gone)

    [line] = queue._levels[0].lines.values()
    assert len(line.heap) < 50
    assert (len(line.waiting), queue.size) == (1, 1)


@given(st.lists(TENANTS, max_size=60), st.lists(st.integers(0, 3), max_size=60))
def test_nothing_is_kept_of_those_who_do_not_wait(tenants: list[str], pops: list[int]) -> None:
    queue = FairQueue()
    for tenant, count in zip(tenants, pops, strict=False):
        queue.add(waiter(tenant))
        drawn(queue, count)
    drawn(queue, queue.size)

    assert (queue.size, queue.sizes(), list(queue), queue.lanes()) == (0, {}, [], set())
