"""What a child builds: waited for, kept on disk, and, if it kills the child, not tried again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outlines_core
import pytest
from structured.tests.compile_jobs import prepare
from structured.tests.compiling import (
    JOBS,
    SECONDS,
    Clock,
    Gated,
    Made,
    TextJobs,
    smollm2,
    spec,
    text_of,
    wait_until,
)
from tests.leftovers import children

from inferway_structured.compile.compilations import Compilations
from inferway_structured.compile.compile_limits import CompileLimits
from inferway_structured.compile.jobs import Child
from inferway_structured.errors import CompileError, SaturatedError, SpecError
from inferway_structured.grammar import Compiled
from inferway_structured.sandbox.process import Limits

# As (a|b)*a(a|b){14}: an automaton of 2^15 states.
HOSTILE = "(a|b)*a(a|b){14}"

MakeManager = Callable[..., Compilations]


def limits(**given: Any) -> CompileLimits:
    child = Limits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=SECONDS, niceness=19)
    return CompileLimits(**{"child": child, **given})


@pytest.fixture
def make() -> Iterator[MakeManager]:
    made: list[Compilations] = []

    def make(jobs: Any, source: Any = None, **given: Any) -> Compilations:
        given = {"limits": limits(), **given}
        made.append(Compilations(source or Gated.open(), jobs=jobs, **given))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


@pytest.fixture(scope="session")
def vocabulary() -> bytes:
    """SmolLM2's, as the child is told it."""
    ids: dict[str, list[int]] = {}
    for token, written in enumerate(smollm2().token_bytes):
        if written is not None and token != 2:
            ids.setdefault(written.decode("latin-1"), []).append(token)
    return json.dumps([2, ids]).encode()


@dataclass(frozen=True)
class Indexed:
    """As Compiled."""

    index: outlines_core.Index
    num_bytes: int
    backend: str = "outlines"
    unenforced: tuple[()] = ()

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> Any:
        raise AssertionError(f"no answer is written here, {stop_token_ids}")


def indexed(data: bytes) -> Compiled:
    return Indexed(outlines_core.Index.from_binary(data), len(data))


def outlines_jobs(vocabulary: bytes, **given: Any) -> TextJobs:
    child = Child((JOBS,), f"{JOBS}:prepare", lambda: vocabulary)
    return TextJobs("index", child=child, finish=indexed, **given)


def test_an_index_that_the_child_has_built_is_what_we_would_have_built(
    make: MakeManager, vocabulary: bytes
) -> None:
    manager = make(outlines_jobs(vocabulary))

    made = manager.compile(spec("[0-9]{4}-[a-f]+")).result(SECONDS)

    prepare(vocabulary)
    from structured.tests import compile_jobs

    ours = outlines_core.Index("[0-9]{4}-[a-f]+", compile_jobs._PREPARED[-1])
    assert isinstance(made, Indexed)
    assert made.index == ours


def test_what_one_process_has_built_another_loads(
    make: MakeManager, vocabulary: bytes, tmp_path: Path
) -> None:
    first = make(outlines_jobs(vocabulary), disk=tmp_path)
    made = first.compile(spec("[0-9]{4}")).result(SECONDS)
    first.close()
    before = children()

    second = make(outlines_jobs(vocabulary), disk=tmp_path)
    loaded = second.compile(spec("[0-9]{4}")).result(SECONDS)

    assert isinstance(made, Indexed)
    assert isinstance(loaded, Indexed)
    assert loaded.index == made.index
    assert second.counts.cache_hits.value("disk") == 1
    assert children() == before


def test_a_regex_that_kills_its_child_is_refused_and_not_tried_again(
    make: MakeManager, vocabulary: bytes
) -> None:
    clock = Clock()
    manager = make(outlines_jobs(vocabulary), clock=clock)

    for _ in range(2):
        with pytest.raises(SpecError, match="compiling it took more than 1 s"):
            manager.compile(spec(HOSTILE)).result(SECONDS)
    assert manager.counts.helper_kills.snapshot() == {"cpu": 1}
    assert manager.snapshot()["quarantined"] == {"": 1}
    assert isinstance(manager.compile(spec("[0-9]{4}")).result(SECONDS), Indexed)

    clock.now += manager.limits.quarantine_seconds
    assert manager.snapshot()["quarantined"] == {"": 0}


def test_while_a_hostile_one_is_built_others_are_not_waited_for(make: MakeManager) -> None:
    """Both take a thread's way; the hostile one spends its time in the child."""

    @dataclass
    class HostileOnly(TextJobs):
        def job(self, spec: Any) -> Any:
            return super().job(spec) if spec.text == "hostile" else None

    manager = make(HostileOnly("spin"), limits=limits(num_threads=1))
    hostile = manager.compile(spec("hostile"))

    others = [text_of(manager.compile(spec(str(n)))) for n in range(50)]

    assert not hostile.done()
    assert others == [str(n) for n in range(50)]
    with pytest.raises(SpecError, match="took more than 1 s"):
        hostile.result(SECONDS)


def test_a_kill_by_the_clock_may_have_been_the_machines_fault(make: MakeManager) -> None:
    child = Limits(cpu_seconds=100, wall_seconds=0.3, niceness=19)
    manager = make(TextJobs("spin"), limits=limits(child=child))

    for _ in range(2):
        with pytest.raises(SpecError, match=r"took more than 0\.3 s"):
            manager.compile(spec("a")).result(SECONDS)

    assert manager.counts.helper_kills.snapshot() == {"wall": 2}
    assert manager.counts.timeouts.snapshot() == {"child": 2}


def test_memory_that_a_job_wants_is_its_childs_end_only(
    make: MakeManager, vocabulary: bytes
) -> None:
    child = Limits(memory_bytes=64 << 20, cpu_seconds=20, wall_seconds=SECONDS, niceness=19)
    manager = make(outlines_jobs(vocabulary), limits=limits(child=child))

    with pytest.raises(SpecError, match="compiling it"):
        manager.compile(spec("[a-z]{1,5000}")).result(SECONDS)

    assert sum(manager.counts.helper_kills.snapshot().values()) == 1
    assert isinstance(manager.compile(spec("[0-9]{4}")).result(SECONDS), Indexed)


def test_what_the_library_refuses_is_remembered_as_refused(
    make: MakeManager, vocabulary: bytes
) -> None:
    manager = make(outlines_jobs(vocabulary))

    for _ in range(2):
        with pytest.raises(SpecError, match="the grammar library refuses it: ValueError"):
            manager.compile(spec("(?=a)b")).result(SECONDS)

    assert manager.counts.cache_hits.value("refused") == 1


def test_a_job_that_is_not_required_takes_over_when_it_is_worth_it(make: MakeManager) -> None:
    manager = make(TextJobs("upper", required=False), limits=limits(job_after=3))

    texts = [text_of(manager.compile(spec("a"))) for _ in range(3)]
    assert texts == ["a", "a", "a"]
    wait_until(lambda: text_of(manager.compile(spec("a"))) == "A")

    held = manager.held(spec("a"))
    assert held is not None
    assert held.backend == "job"


def test_a_job_that_is_not_required_and_fails_changes_nothing(make: MakeManager) -> None:
    manager = make(TextJobs("spin", required=False), limits=limits(job_after=2))

    manager.compile(spec("a")).result(SECONDS)
    manager.compile(spec("a")).result(SECONDS)
    wait_until(lambda: manager.snapshot()["quarantined"] == {"": 1})

    assert text_of(manager.compile(spec("a"))) == "a"
    assert manager.counts.requests.value("regex", "double", "ok") == 3


def test_what_is_on_disk_is_used_before_anything_else_is_made(
    make: MakeManager, tmp_path: Path
) -> None:
    required = make(TextJobs("upper"), disk=tmp_path)
    required.compile(spec("a")).result(SECONDS)

    manager = make(TextJobs("upper", required=False), disk=tmp_path)

    assert text_of(manager.compile(spec("a"))) == "A"


def test_another_vocabularys_results_are_not_used(make: MakeManager, tmp_path: Path) -> None:
    make(TextJobs("upper"), disk=tmp_path).compile(spec("a")).result(SECONDS)

    manager = make(TextJobs("upper", fingerprint="another"), disk=tmp_path)
    manager.compile(spec("a")).result(SECONDS)

    assert manager.counts.cache_hits.value("disk") == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_whole_and_cannot_be_read_is_built_again(make: MakeManager, tmp_path: Path) -> None:
    make(TextJobs("upper"), disk=tmp_path).compile(spec("a")).result(SECONDS)
    failures = [ValueError("not of this version")]

    def fails_once(data: bytes) -> Compiled:
        if failures:
            raise failures.pop()
        return Made(data.decode(), backend="job")

    manager = make(TextJobs("upper", finish=fails_once), disk=tmp_path)

    assert text_of(manager.compile(spec("a"))) == "A"
    assert manager.counts.cache_hits.value("disk") == 0


def test_who_leaves_before_the_child_has_begun_has_his_job_dropped(make: MakeManager) -> None:
    @dataclass
    class Named(TextJobs):
        def job(self, spec: Any) -> Any:
            self.function = spec.text
            return super().job(spec)

    manager = make(Named(""), limits=limits(num_threads=1))
    running = manager.compile(spec("spin"))
    left = manager.compile(spec("upper"))
    wait_until(lambda: manager._children.num_open() == 2)  # type: ignore[union-attr]

    assert left.cancel()

    wait_until(lambda: manager.counts.builds_dropped.value() == 1)
    with pytest.raises(SpecError):
        running.result(SECONDS)
    assert text_of(manager.compile(spec("upper"))) == "UPPER"


def test_too_many_jobs_for_the_child_are_refused(make: MakeManager) -> None:
    manager = make(TextJobs("spin"), limits=limits(wait_seconds=0.1))

    futures = [manager.compile(spec(str(n))) for n in range(20)]
    errors = [future.exception(SECONDS) for future in futures]

    assert sum(isinstance(error, SpecError) for error in errors) == 1  # the one that ran
    assert sum(isinstance(error, SaturatedError) for error in errors) == 19


def test_the_child_has_the_lowest_priority(make: MakeManager) -> None:
    manager = make(TextJobs("niceness"))

    assert text_of(manager.compile(spec(""))) == "19"


def test_a_child_that_cannot_start_is_our_fault(make: MakeManager) -> None:
    manager = make(TextJobs("upper", child=Child(("no_such_module",))))

    with pytest.raises(CompileError, match="does not start"):
        manager.compile(spec("a")).result(SECONDS)


def test_closing_ends_the_child_at_work(make: MakeManager) -> None:
    before, threads = children(), threading.active_count()
    manager = make(TextJobs("spin"))
    running = manager.compile(spec("a"))
    wait_until(lambda: len(children()) > len(before))

    manager.close()

    assert children() == before
    assert threading.active_count() == threads
    with pytest.raises(CompileError):
        running.result(0)
