"""What a child compiles: waited for, and, if it kills the child, not tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structured.tests.compiling import SECONDS, Clock, heavy, spec, text_jobs, text_of, wait_until
from tests.leftovers import children

from inferway_structured.compile.compilations import Compilations, CompileLimits
from inferway_structured.compile.compile_trial import Jobs
from inferway_structured.errors import CompileError, SaturatedError, SpecError
from inferway_structured.sandbox.process import Limits

MakeManager = Callable[..., Compilations]


def limits(**given: Any) -> CompileLimits:
    trial = Limits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=SECONDS, niceness=19)
    return CompileLimits(**{"trial": trial, **given})


@pytest.fixture
def make() -> Iterator[MakeManager]:
    made: list[Compilations] = []

    def make(trials: Jobs, **given: Any) -> Compilations:
        made.append(Compilations(heavy, trials=trials, **{"limits": limits(), **given}))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


def test_what_kills_its_child_is_refused_and_not_tried_again(make: MakeManager) -> None:
    clock = Clock()
    manager = make(text_jobs(), clock=clock)

    for _ in range(2):
        with pytest.raises(SpecError, match="compiling it took more than 1 s"):
            manager.compile(spec("spin")).result(SECONDS)
    assert manager.counts.helper_kills.snapshot() == {"cpu": 1}
    assert manager.snapshot()["quarantined"] == {"": 1}
    assert text_of(manager.compile(spec("upper"))) == "UPPER"

    clock.now += manager.limits.quarantine_seconds
    assert manager.snapshot()["quarantined"] == {"": 0}


def test_while_a_hostile_one_is_compiled_others_are_not_waited_for(make: MakeManager) -> None:
    manager = make(text_jobs(), limits=limits(num_threads=1))
    hostile = manager.compile(spec("spin"))

    others = [text_of(manager.compile(spec(f"light {n}"))) for n in range(50)]

    assert not hostile.done()
    assert others == [f"light {n}" for n in range(50)]
    with pytest.raises(SpecError, match="took more than 1 s"):
        hostile.result(SECONDS)


def test_a_kill_by_the_clock_may_have_been_the_machines_fault(make: MakeManager) -> None:
    trial = Limits(cpu_seconds=100, wall_seconds=0.3, niceness=19)
    manager = make(text_jobs("spin"), limits=limits(trial=trial))

    for _ in range(2):
        with pytest.raises(SpecError, match=r"took more than 0\.3 s"):
            manager.compile(spec("a")).result(SECONDS)

    assert manager.counts.helper_kills.snapshot() == {"wall": 2}
    assert manager.counts.timeouts.snapshot() == {"child": 2}


def test_memory_that_a_job_wants_is_its_childs_end_only(make: MakeManager) -> None:
    manager = make(text_jobs())

    with pytest.raises(SpecError, match="compiling it"):
        manager.compile(spec("grow")).result(SECONDS)

    assert manager.counts.helper_kills.snapshot() == {"memory": 1}
    assert text_of(manager.compile(spec("upper"))) == "UPPER"


def test_what_the_library_refuses_is_remembered_as_refused(make: MakeManager) -> None:
    manager = make(text_jobs())

    for _ in range(2):
        with pytest.raises(SpecError, match="the grammar library refuses it: ValueError"):
            manager.compile(spec("refuse")).result(SECONDS)

    assert manager.counts.cache_hits.value("refused") == 1


def test_who_leaves_before_the_child_has_begun_has_his_job_dropped(make: MakeManager) -> None:
    manager = make(text_jobs(), limits=limits(num_threads=1))
    running = manager.compile(spec("spin"))
    left = manager.compile(spec("upper"))
    wait_until(lambda: manager._child.num_open == 2)  # type: ignore[union-attr]

    assert left.cancel()

    wait_until(lambda: manager.counts.builds_dropped.value() == 1)
    with pytest.raises(SpecError):
        running.result(SECONDS)
    assert text_of(manager.compile(spec("upper"))) == "UPPER"


def test_too_many_jobs_for_the_child_are_refused(make: MakeManager) -> None:
    manager = make(text_jobs("spin"), limits=limits(wait_seconds=0.1))

    futures = [manager.compile(spec(str(n))) for n in range(20)]
    errors = [future.exception(SECONDS) for future in futures]

    assert sum(isinstance(error, SpecError) for error in errors) == 1  # the one that ran
    assert sum(isinstance(error, SaturatedError) for error in errors) == 19


def test_the_child_has_the_lowest_priority(make: MakeManager) -> None:
    assert text_of(make(text_jobs()).compile(spec("niceness"))) == "19"


def test_a_child_that_cannot_start_is_our_fault(make: MakeManager) -> None:
    manager = make(text_jobs()._replace(function="no_such_module:f"))

    with pytest.raises(CompileError, match="does not start"):
        manager.compile(spec("upper")).result(SECONDS)


def test_closing_ends_the_child_at_work(make: MakeManager) -> None:
    before, threads = children(), threading.active_count()
    manager = make(text_jobs())
    running = manager.compile(spec("spin"))
    wait_until(lambda: len(children()) > len(before))

    manager.close()

    assert children() == before
    assert threading.active_count() == threads
    with pytest.raises(CompileError):
        running.result(0)
