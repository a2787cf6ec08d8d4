"""Every spec is compiled once, and nobody waits for another's."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from typing import TYPE_CHECKING, Any

import pytest
from structured.tests.compiling import (
    SECONDS,
    Clock,
    Gated,
    heavy,
    is_held,
    spec,
    text_jobs,
    text_of,
    wait_until,
)

from inferway_structured.compile.compilations import Compilations, CompileLimits
from inferway_structured.errors import CompileError, SaturatedError, SpecError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec

if TYPE_CHECKING:
    from inferway_structured.compile.compilations import Waiter

MakeManager = Callable[..., Compilations]


@pytest.fixture
def make() -> Iterator[MakeManager]:
    made: list[tuple[Any, Compilations]] = []

    def make(source: Any, limits: CompileLimits | None = None, **given: Any) -> Compilations:
        manager = Compilations(getattr(source, "compile", source), limits, **given)
        made.append((source, manager))
        return manager

    yield make
    for source, manager in made:
        if isinstance(source, Gated):
            source.gate.set()
        manager.close()


def compile_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("compile")]


def test_what_is_heavy_is_left_to_a_child(make: MakeManager) -> None:
    manager = make(heavy, trials=text_jobs("upper"))

    assert text_of(manager.compile(spec("a"))) == "A"
    assert [held.num_bytes for held in manager.held_specs()] == [1_000_000]


def test_what_is_heavy_is_refused_where_there_is_no_child(make: MakeManager) -> None:
    manager = make(heavy)

    with pytest.raises(SpecError, match=r"^a shape that may take long; simplify it$"):
        manager.compile(spec("a")).result(SECONDS)


def test_a_spec_is_compiled_once_and_then_held(make: MakeManager) -> None:
    source = Gated.open()
    manager = make(source)

    first = manager.compile(spec("a"))
    assert text_of(first) == "a"
    again = manager.compile(spec("a"))

    assert again.done()
    assert again.result() is first.result()
    assert source.built == ["a"]
    assert manager.counts.cache_hits.value("memory") == 1


def test_who_asks_during_a_build_waits_for_that_build(make: MakeManager) -> None:
    source = Gated()
    manager = make(source)

    futures = [manager.compile(spec("a")) for _ in range(50)]
    assert not any(future.done() for future in futures)
    source.gate.set()

    assert {text_of(future) for future in futures} == {"a"}
    assert source.built == ["a"]
    assert manager.counts.joins.value() == 49


def test_threads_that_ask_at_once_share_a_build(make: MakeManager) -> None:
    source = Gated.open()
    manager = make(source)
    start = threading.Barrier(8)
    texts: list[str] = []

    def ask() -> None:
        start.wait(SECONDS)
        texts.extend(text_of(manager.compile(spec(str(n)))) for n in range(100))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert sorted(texts) == sorted(str(n) for n in range(100) for _ in range(8))
    assert sorted(source.built) == sorted(str(n) for n in range(100))


def test_a_refusal_is_remembered_for_a_while_and_raised_anew(make: MakeManager) -> None:
    source, clock = Gated.open(), Clock()
    manager = make(source, clock=clock)

    errors = []
    for _ in range(3):
        with pytest.raises(SpecError, match="cannot hold") as caught:
            manager.compile(spec("bad")).result(SECONDS)
        errors.append(caught.value)
    assert source.built == ["bad"]
    assert len(set(map(id, errors))) == 3
    assert {(error.place, error.keyword) for error in errors} == {("/a", "pattern")}
    assert manager.counts.refusals.value("pattern") == 3

    clock.now += manager.limits.refusal_seconds
    with pytest.raises(SpecError):
        manager.compile(spec("bad")).result(SECONDS)
    assert source.built == ["bad", "bad"]


def test_a_panic_of_a_library_ends_its_own_requests_only(
    make: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    source = Gated.open()
    manager = make(source)

    with pytest.raises(CompileError, match="a grammar library failed: BaseException"):
        manager.compile(spec("broken by this")).result(SECONDS)

    assert text_of(manager.compile(spec("a"))) == "a"
    assert "broken by this" not in caplog.text
    assert "a grammar could not be built, by a fault of ours: BaseException" in caplog.text


def test_a_build_nobody_waits_for_any_more_is_not_begun(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    running = manager.compile(spec("running"))
    source.wait_for_build()
    left, stays = manager.compile(spec("left")), manager.compile(spec("stays"))

    assert left.cancel()
    source.gate.set()

    assert (text_of(running), text_of(stays)) == ("running", "stays")
    assert source.built == ["running", "stays"]
    assert manager.counts.builds_dropped.value() == 1


def test_a_build_goes_on_while_one_of_several_still_waits(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    manager.compile(spec("running"))
    source.wait_for_build()
    left, stays = manager.compile(spec("a")), manager.compile(spec("a"))

    left.cancel()
    source.gate.set()

    assert text_of(stays) == "a"
    with pytest.raises(CancelledError):
        left.result(SECONDS)


def test_what_was_begun_for_somebody_who_left_is_held_for_the_next(make: MakeManager) -> None:
    source = Gated()
    manager = make(source)
    left = manager.compile(spec("a"))
    source.wait_for_build()

    left.cancel()
    source.gate.set()
    wait_until(lambda: is_held(manager, "a"))

    assert text_of(manager.compile(spec("a"))) == "a"
    assert source.built == ["a"]


def test_a_build_that_nobody_waits_for_holds_up_no_other(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    left = manager.compile(spec("left"))
    source.wait_for_build()
    waiting = manager.compile(spec("next"))

    left.cancel()

    source.wait_for_build()  # of the next, while the first is still at the gate
    source.gate.set()
    assert text_of(waiting) == "next"
    assert text_of(manager.compile(spec("left"))) == "left"
    assert sorted(source.built) == ["left", "next"], "and what was left is not built again"


async def test_a_task_that_is_cancelled_has_left(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    running = asyncio.wrap_future(manager.compile(spec("running")))
    await asyncio.to_thread(source.wait_for_build)
    waiting = asyncio.wrap_future(manager.compile(spec("waiting")))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    source.gate.set()
    made = await running

    assert made.backend == "double"
    assert source.built == ["running"]


def test_too_many_waiting_builds_are_refused_at_once(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1, max_waiting=2))
    first = manager.compile(spec("running"))
    source.wait_for_build()
    waiting = [manager.compile(spec(text)) for text in "ab"]

    refused = manager.compile(spec("c"))

    with pytest.raises(SaturatedError, match="3 grammars are compiled or wait for it"):
        refused.result(0)
    source.gate.set()
    assert [text_of(future) for future in (first, *waiting)] == ["running", "a", "b"]
    assert manager.counts.requests.value("regex", "", "busy") == 1


def test_a_build_that_takes_too_long_ends_its_requests_and_stops_no_other(
    make: MakeManager,
) -> None:
    slow, clock = Gated(), Clock()
    manager = make(slow, CompileLimits(num_threads=1, build_seconds=2), clock=clock)
    late = manager.compile(spec("late"))
    slow.wait_for_build()
    other = manager.compile(spec("other"))

    clock.now += 2
    manager.expire()

    with pytest.raises(SpecError, match="took longer than 2 s to compile"):
        late.result(SECONDS)
    slow.wait_for_build()  # the other has a thread of its own now
    assert not other.done()
    with pytest.raises(SpecError, match="took longer than 2 s"):
        manager.compile(spec("late")).result(0)
    assert manager.counts.timeouts.value("thread") == 1

    slow.gate.set()
    assert text_of(other) == "other"
    wait_until(lambda: is_held(manager, "late"))
    assert text_of(manager.compile(spec("late"))) == "late"


def test_of_threads_that_do_not_come_back_only_so_many_are_replaced(make: MakeManager) -> None:
    source, clock = Gated(), Clock()
    manager = make(source, CompileLimits(num_threads=1), clock=clock)

    for n in range(8):
        manager.compile(spec(str(n)))
        if n < 5:
            source.wait_for_build()
        clock.now += manager.limits.build_seconds
        manager.expire()

    assert len(compile_threads()) <= 1 + 4 + 1  # workers, stuck ones, the watcher
    source.gate.set()
    assert text_of(manager.compile(spec("later"))) == "later"


def test_a_build_that_gets_no_thread_in_time_is_given_up(make: MakeManager) -> None:
    source, clock = Gated(), Clock()
    limits = CompileLimits(num_threads=1, build_seconds=100, wait_seconds=10)
    manager = make(source, limits, clock=clock)
    running = manager.compile(spec("running"))
    source.wait_for_build()
    waiting = manager.compile(spec("waiting"))

    clock.now += 10
    manager.expire()
    with pytest.raises(SaturatedError):
        waiting.result(0)
    source.gate.set()

    assert text_of(running) == "running"
    assert source.built == ["running"]


def test_limits_on_time_are_kept_by_themselves(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(build_seconds=0.01))

    with pytest.raises(SpecError, match=r"took longer than 0\.01 s"):
        manager.compile(spec("a")).result(SECONDS)


def test_what_was_used_longest_ago_goes_when_memory_is_full(make: MakeManager) -> None:
    source = Gated.open()
    manager = make(source, CompileLimits(memory_bytes=2_500_000))  # two, of 1 MB each

    for text in "abac":
        manager.compile(spec(text)).result(SECONDS)

    assert [text for text in "abc" if is_held(manager, text)] == ["a", "c"]
    assert manager.snapshot()["held_bytes"] == {"memory": 2_000_000}


def test_what_a_library_says_it_holds_is_not_believed_if_such_specs_take_more(
    make: MakeManager,
) -> None:
    source = Gated.open()
    source.num_bytes = 1
    manager = make(source)
    towering = Spec(Kind.JSON, '{"type":"array","maxItems":10000}')

    manager.compile(towering).result(SECONDS)

    assert 6_000_000 < manager.held_specs()[0].num_bytes < 7_000_000


def test_what_is_held_is_told_the_last_used_first(make: MakeManager) -> None:
    clock = Clock()
    source = Gated()
    manager = make(source, clock=clock)
    slow = manager.compile(spec("slow"))
    source.wait_for_build()
    clock.now += 1.5
    source.gate.set()
    slow.result(SECONDS)
    manager.compile(spec("quick")).result(SECONDS)
    manager.compile(spec("slow"))

    first, second = manager.held_specs()

    assert first[:4] == (spec("slow").key, "double", 1.5, 1_000_000)
    assert second[:2] == (spec("quick").key, "double")
    assert manager.held_specs(most=1) == [first]


def test_what_is_larger_than_the_memory_is_used_and_not_held(make: MakeManager) -> None:
    source = Gated.open()
    manager = make(source, CompileLimits(memory_bytes=999_999))

    assert text_of(manager.compile(spec("a"))) == "a"
    assert not is_held(manager, "a")


def test_warming_builds_what_nobody_has_asked_for_yet(make: MakeManager) -> None:
    source = Gated.open()
    manager = make(source)

    assert manager.warm(spec("a"))
    wait_until(lambda: is_held(manager, "a"))

    assert manager.compile(spec("a")).done()


def test_what_is_warmed_waits_for_all_that_somebody_waits_for(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    manager.compile(spec("running"))
    source.wait_for_build()

    for text in "abc":
        manager.warm(spec(text))
    manager.compile(spec("d"))
    manager.compile(spec("b"))
    source.gate.set()

    wait_until(lambda: len(source.built) == 5)
    assert source.built == ["running", "d", "b", "a", "c"]


def test_warming_gives_way_to_requests(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1, max_waiting=4))
    running = manager.compile(spec("running"))
    source.wait_for_build()

    warmed = [manager.warm(spec(text)) for text in "abc"]
    asked = [manager.compile(spec(text)) for text in "defg"]
    source.gate.set()

    assert warmed == [True, True, False]
    assert [text_of(future) for future in (running, *asked)] == ["running", *"defg"]
    assert source.built == ["running", *"defg"]


def test_who_asks_for_what_is_being_warmed_may_leave_again(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    manager.compile(spec("running"))
    source.wait_for_build()
    manager.warm(spec("a"))

    manager.compile(spec("a")).cancel()
    source.gate.set()

    wait_until(lambda: is_held(manager, "a"))
    assert source.built == ["running", "a"]


def test_keywords_nobody_keeps_are_counted(make: MakeManager) -> None:
    source = Gated.open()
    source.unenforced = [Unenforced("", "uniqueItems"), Unenforced("/a", "made-up-by-a-client")]
    manager = make(source)

    manager.compile(spec("a")).result(SECONDS)

    assert manager.counts.unenforced.snapshot() == {"uniqueItems": 1, "other": 1}


def test_closing_fails_who_waits_and_leaves_no_thread(make: MakeManager) -> None:
    source = Gated()
    manager = make(source, CompileLimits(num_threads=1))
    running = manager.compile(spec("running"))
    source.wait_for_build()
    waiting = manager.compile(spec("waiting"))

    threading.Timer(0.01, source.gate.set).start()
    manager.close()

    for future in (running, waiting, manager.compile(spec("later"))):
        with pytest.raises(CompileError, match="the engine stops"):
            future.result(0)
    assert compile_threads() == []


def test_closing_does_not_wait_for_a_thread_that_hangs(make: MakeManager) -> None:
    source = Gated()
    manager = make(source)
    running = manager.compile(spec("running"))
    source.wait_for_build()

    manager.close()

    hanging = compile_threads()
    assert hanging
    assert all(thread.daemon for thread in hanging)
    with pytest.raises(CompileError):
        running.result(0)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_at_once_every_future_ends(make: MakeManager, seed: int) -> None:
    """Askers, leavers, warmers, and a clock that jumps, on builds of which some fail."""
    source, clock, draw = Gated.open(), Clock(), random.Random(seed)
    limits = CompileLimits(num_threads=2, max_waiting=6, memory_bytes=5_000_000, refusal_seconds=5)
    manager = make(source, limits, clock=clock)
    futures: list[Waiter] = []
    texts = [f"{kind}{n}" for kind in ("a", "bad", "broken") for n in range(4)]
    plans = [
        [(draw.choice(texts), draw.choice(["ask", "leave", "warm", "late"])) for _ in range(150)]
        for _ in range(4)
    ]

    def go(plan: list[tuple[str, str]]) -> None:
        for text, deed in plan:
            if deed == "warm":
                manager.warm(spec(text))
                continue
            futures.append(manager.compile(spec(text)))
            if deed == "leave":
                futures[-1].cancel()
            elif deed == "late":
                clock.now += 3
                manager.expire()

    threads = [threading.Thread(target=go, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    wait(futures, SECONDS)

    assert all(future.done() for future in futures)
    wait_until(lambda: not manager._builds)
    assert manager.snapshot()["held_bytes"]["memory"] <= 5_000_000
    outcomes = manager.snapshot()["requests"]
    ended = sum(outcomes.values()) - outcomes.get("regex//cancelled", 0)
    assert ended == sum(not future.cancelled() for future in futures)


def test_a_manager_that_was_never_used_has_no_threads(make: MakeManager) -> None:
    before = len(threading.enumerate())

    make(Gated.open())

    assert len(threading.enumerate()) == before
