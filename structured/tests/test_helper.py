"""A process for jobs that nobody vouches for: what it contains, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.leftovers import children, runs

from inferway_structured.errors import (
    JobFailedError,
    JobKilledError,
    SandboxBusyError,
    SandboxError,
)
from inferway_structured.sandbox.process import Limits, SandboxProcess
from inferway_structured.sandbox.sandbox import Sandbox

JOBS = "structured.tests.helper_jobs"
ROOT = Path(__file__).parents[2]

SMALL = Limits(memory_bytes=64 << 20, cpu_seconds=1, wall_seconds=30, result_bytes=1 << 20)

MakeHelper = Callable[..., Sandbox]


@pytest.fixture
def make_helper() -> Iterator[MakeHelper]:
    made: list[Sandbox] = []

    def make(limits: Limits = SMALL, **settings: Any) -> Sandbox:
        made.append(Sandbox(JOBS, limits=limits, **{"patience_seconds": 60.0, **settings}))
        return made[-1]

    yield make
    for helper in made:
        helper.close()


@pytest.fixture(scope="module")
def helper() -> Iterator[Sandbox]:
    """For tests whose jobs leave it as it was."""
    helper = Sandbox(JOBS, limits=SMALL, patience_seconds=60)
    yield helper
    helper.close()


def do(helper: Sandbox, name: str, argument: object = "") -> bytes:
    return helper.call(f"{JOBS}:{name}", str(argument).encode())


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_a_jobs_result_comes_back(make_helper: MakeHelper, size: int) -> None:
    helper = make_helper(Limits())

    assert helper.call(f"{JOBS}:echo", b"x" * size) == b"x" * size


def test_one_process_does_one_job_after_the_other(helper: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        pids = set(threads.map(lambda _: do(helper, "pid"), range(8)))

    assert len(pids) == 1


def test_every_caller_gets_its_own_answer(helper: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda i: do(helper, "echo", i), range(100)))

    assert answers == [str(i).encode() for i in range(100)]


@pytest.mark.parametrize(("name", "error"), [("fail", "ValueError"), ("leave", "SystemExit")])
def test_a_job_that_raises_tells_the_errors_type_and_none_of_its_words(
    helper: Sandbox, name: str, error: str
) -> None:
    with pytest.raises(JobFailedError) as e:
        do(helper, name, 123456)

    assert str(e.value) == error


@pytest.mark.parametrize(
    ("name", "argument", "limits", "limit", "words"),
    [
        ("allocate", 100, SMALL, "memory", "took more memory than 64 MiB"),
        ("spin", "", SMALL, "cpu", "took more than 1 s of CPU time"),
        ("sleep", "", Limits(wall_seconds=0.2), "wall", "took more than 0.2 s"),
        ("long", 2, SMALL, "result", "made more than 1 MiB"),
        ("crash", "", SMALL, "crash", "ended its process (status -11)"),
    ],
)
def test_a_job_over_a_limit_is_killed_and_the_next_one_is_not(
    make_helper: MakeHelper, name: str, argument: object, limits: Limits, limit: str, words: str
) -> None:
    helper = make_helper(limits)
    before = do(helper, "pid")

    with pytest.raises(JobKilledError) as e:
        do(helper, name, argument)

    assert (e.value.limit, str(e.value)) == (limit, words)
    assert do(helper, "pid") != before
    assert (helper.stats.kills, runs(int(before))) == ({limit: 1}, False)


def test_the_cpu_limit_is_each_jobs_own(make_helper: MakeHelper) -> None:
    helper = make_helper(Limits(cpu_seconds=1, wall_seconds=0.7))
    errors = []

    for _ in range(3):
        with pytest.raises(JobKilledError) as e:
            do(helper, "spin")
        errors.append(e.value.limit)

    assert errors == ["wall"] * 3


def test_what_a_job_has_left_of_its_cpu_time_does_not_end_the_next(make_helper: MakeHelper) -> None:
    helper = make_helper(Limits(wall_seconds=60))
    do(helper, "leave_cpu_time", 0.02)

    do(helper, "pid", "x" * (128 << 20))  # to read this takes 0.05 s or more

    assert helper.stats.kills == {}


def test_a_spare_process_waits_for_the_one_at_work_to_be_killed(make_helper: MakeHelper) -> None:
    others = children()
    helper = make_helper()
    first = int(do(helper, "pid"))
    [spare] = children() - others - {first}

    with pytest.raises(JobKilledError):
        do(helper, "crash")

    assert int(do(helper, "pid")) == spare
    wait_until(lambda: helper.stats.started == 3)


def test_a_process_whose_memory_earlier_jobs_have_used_up_is_replaced(
    make_helper: MakeHelper,
) -> None:
    helper = make_helper()
    before = do(helper, "pid")

    do(helper, "keep", 20)

    assert do(helper, "pid") != before
    assert helper.stats.kills == {}


def test_more_jobs_than_may_wait_are_refused(make_helper: MakeHelper) -> None:
    helper = make_helper(max_waiting=2)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(do, helper, "sleep")
        wait_until(lambda: helper.num_open == 3)

        with pytest.raises(SandboxBusyError):
            do(helper, "echo")
        helper.close()

    assert helper.stats.refused == 1


def test_a_job_that_waits_for_too_long_is_refused(make_helper: MakeHelper) -> None:
    helper = make_helper(patience_seconds=0.05)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(do, helper, "sleep")
        wait_until(lambda: helper.stats.jobs == 1)

        with pytest.raises(SandboxBusyError):
            do(helper, "echo")
        with pytest.raises(SandboxBusyError):
            asyncio.run(helper.call_async(f"{JOBS}:echo", b""))

        assert (helper.num_open, helper.stats.refused) == (1, 2)
        helper.close()


async def test_a_caller_who_is_cancelled_takes_nobody_elses_answer(
    make_helper: MakeHelper,
) -> None:
    helper = make_helper()
    first = asyncio.create_task(helper.call_async(f"{JOBS}:echo_later", b"first"))
    while helper.stats.jobs == 0:
        await asyncio.sleep(0.001)

    first.cancel()

    assert await helper.call_async(f"{JOBS}:echo", b"second") == b"second"
    assert (helper.stats.started, helper.stats.jobs) == (2, 2)
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_job_whose_caller_is_cancelled_while_it_waits_is_not_done(
    make_helper: MakeHelper,
) -> None:
    helper = make_helper()
    first = asyncio.create_task(helper.call_async(f"{JOBS}:echo_later", b"first"))
    second = asyncio.create_task(helper.call_async(f"{JOBS}:echo", b"second"))
    while helper.num_open < 2:
        await asyncio.sleep(0.001)

    second.cancel()

    assert await first == b"first"
    assert await helper.call_async(f"{JOBS}:echo", b"third") == b"third"
    assert helper.stats.jobs == 2


async def test_an_event_loop_goes_on_while_a_job_is_done(helper: Sandbox) -> None:
    job = asyncio.create_task(helper.call_async(f"{JOBS}:echo_later", b""))
    turns = 0
    while not job.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert turns > 20


def test_closing_kills_what_runs_and_refuses_what_waits(make_helper: MakeHelper) -> None:
    helper = make_helper()
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(do, helper, "sleep")
        wait_until(lambda: helper.stats.jobs == 1)
        waiting = threads.submit(do, helper, "echo")
        wait_until(lambda: helper.num_open == 2)

        helper.close()

        for job in (running, waiting):
            with pytest.raises(SandboxError, match="closed"):
                job.result()
    with pytest.raises(SandboxError, match="closed"):
        do(helper, "echo")


def test_nothing_is_left_of_a_closed_helper(make_helper: MakeHelper) -> None:
    before = (children(), fds())
    helper = make_helper()
    for _ in range(3):
        with pytest.raises(JobKilledError):
            do(helper, "crash")

    helper.close()

    assert (children(), fds()) == before


def test_a_process_that_a_job_has_started_ends_with_it(make_helper: MakeHelper) -> None:
    helper = make_helper()
    try:
        forked = int(do(helper, "fork"))
    except JobFailedError:
        return  # not being root, it could not even be started

    helper.close()

    wait_until(lambda: not runs(forked))


PARENT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.sandbox.process import Limits
helper = Sandbox({JOBS!r}, limits=Limits(cpu_seconds=600, wall_seconds=600), patience_seconds=600)
print(int(helper.call({f"{JOBS}:pid"!r}, b"")), flush=True)
helper.call({f"{JOBS}:spin"!r}, b"")
"""


def test_no_process_outlives_a_parent_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        at_work = int(parent.stdout.readline())
        both = children(parent.pid)
        assert (at_work in both, len(both)) == (True, 2)

        parent.send_signal(signal.SIGKILL)

    for pid in both:
        wait_until(lambda pid=pid: not runs(pid))  # type: ignore[misc]


def test_a_process_knows_nothing_of_our_environment(
    make_helper: MakeHelper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("TZ", "Asia/Kolkata")

    known = json.loads(do(make_helper(), "environment"))

    assert known.pop("TZ") == "Asia/Kolkata"
    assert set(known) <= {"LC_CTYPE", "LD_LIBRARY_PATH"}


def test_a_process_has_none_of_our_files_and_sockets(make_helper: MakeHelper) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        opened = json.loads(do(make_helper(), "open_fds"))
    finally:
        os.close(read)
        os.close(write)

    assert opened[:3] == [0, 1, 2]
    assert len(opened) == 5  # its socket, and its own memory's size


@pytest.mark.parametrize(("name", "argument"), [("open_file", "/etc/hostname"), ("connect", "")])
def test_a_job_can_open_nothing(helper: Sandbox, name: str, argument: str) -> None:
    with pytest.raises(JobFailedError, match="OSError"):
        do(helper, name, argument)


def test_a_process_imports_no_more_than_it_needs(helper: Sandbox) -> None:
    imported = {name.partition(".")[0] for name in json.loads(do(helper, "modules"))}

    assert imported - sys.stdlib_module_names == {"__main__", "inferway_structured", "structured"}
    assert not imported & {"asyncio", "concurrent", "subprocess"}


def test_a_process_that_does_not_start_says_why() -> None:
    helper = Sandbox("no_such_module", limits=SMALL, patience_seconds=60)
    try:
        with pytest.raises(SandboxError, match="does not start: ModuleNotFoundError"):
            helper.call("no_such_module:f", b"")
    finally:
        helper.close()


def test_each_process_is_prepared_once_with_what_jobs_need(make_helper: MakeHelper) -> None:
    told = bytes(range(256)) * 2000
    helper = make_helper(prepare=(f"{JOBS}:prepare", told), keep_spare=True)

    first, again = do(helper, "prepared"), do(helper, "prepared")
    with pytest.raises(JobKilledError):
        do(helper, "crash")
    after = do(helper, "prepared")

    assert first == again == after == told + b" python"


def test_preparing_leaves_nothing_open(make_helper: MakeHelper) -> None:
    before = fds()
    plain, helper = make_helper(), make_helper(prepare=(f"{JOBS}:prepare", b"x"))

    open_in = [len(json.loads(do(each, "open_fds"))) for each in (plain, helper)]
    assert open_in[0] == open_in[1]
    plain.close()
    helper.close()
    assert fds() == before


def test_nothing_to_be_prepared_with_is_something_too(make_helper: MakeHelper) -> None:
    helper = make_helper(prepare=(f"{JOBS}:prepare", b""))

    assert do(helper, "prepared") == b" python"


def test_a_process_that_cannot_be_prepared_does_not_start(make_helper: MakeHelper) -> None:
    helper = make_helper(prepare=(f"{JOBS}:prepare_badly", b"no such vocabulary"))

    with pytest.raises(SandboxError, match="does not start: ValueError: no such vocabulary"):
        do(helper, "echo")


@pytest.mark.parametrize("niceness", [10, 19])
def test_the_child_is_as_nice_as_it_is_told(make_helper: MakeHelper, niceness: int) -> None:
    helper = make_helper(limits=replace(SMALL, niceness=niceness))

    assert int(do(helper, "niceness")) == min(19, os.nice(0) + niceness)


def test_who_waits_in_his_own_way_gets_a_future(make_helper: MakeHelper) -> None:
    helper = make_helper()

    slow = helper.submit(f"{JOBS}:sleep", b"")
    waiting = helper.submit(f"{JOBS}:echo", b"a")

    assert waiting.cancel()
    assert not slow.done()
    helper.close()
    assert isinstance(slow.exception(30), SandboxError)


@pytest.fixture
def original() -> Iterator[SandboxProcess]:
    process = SandboxProcess((JOBS,), SMALL, copied=True)
    yield process
    process.close()


def test_a_copy_has_what_the_original_had_and_changes_nothing_there(
    original: SandboxProcess,
) -> None:
    original.do(f"{JOBS}:keep", b"3")

    copy = original.copy(SMALL)
    copy.do(f"{JOBS}:keep", b"2")

    assert copy.do(f"{JOBS}:kept", b"") == b"5"
    assert original.do(f"{JOBS}:kept", b"") == b"3"


def test_a_copy_is_copied_if_it_may_be(original: SandboxProcess) -> None:
    first = original.copy(SMALL, copied=True)
    first.do(f"{JOBS}:keep", b"1")

    second = first.copy(SMALL)

    assert second.do(f"{JOBS}:kept", b"") == b"1"
    with pytest.raises(SandboxError):
        second.copy(SMALL)


def test_a_copy_opens_no_files_and_no_sockets(original: SandboxProcess) -> None:
    copy = original.copy(SMALL)

    for name, argument in (("open_file", b"/proc/self/comm"), ("connect", b"")):
        with pytest.raises(JobFailedError):
            copy.do(f"{JOBS}:{name}", argument)


def test_a_copy_over_its_cpu_time_ends_alone(original: SandboxProcess) -> None:
    limits = replace(SMALL, cpu_seconds=0.05)
    spinner, other = original.copy(limits), original.copy(limits)

    with pytest.raises(JobKilledError):
        spinner.do(f"{JOBS}:spin", b"")

    assert other.do(f"{JOBS}:echo", b"x") == b"x"
    assert original.copy(limits).do(f"{JOBS}:echo", b"y") == b"y"


def test_what_cannot_be_copied_goes_on_and_so_do_its_copies(original: SandboxProcess) -> None:
    copy = original.copy(SMALL)
    original.do(f"{JOBS}:fork_no_more", b"")

    with pytest.raises(SandboxError, match="not copied"):
        original.copy(SMALL)

    assert original.usable
    assert original.do(f"{JOBS}:echo", b"x") == b"x"
    assert copy.do(f"{JOBS}:echo", b"y") == b"y"


def test_a_copy_ends_when_its_conversation_does_or_its_original(original: SandboxProcess) -> None:
    closed, dropped, left = (original.copy(SMALL) for _ in range(3))
    pids = [int(copy.do(f"{JOBS}:pid", b"")) for copy in (closed, dropped, left)]
    assert all(map(runs, pids))

    closed.close()
    del dropped
    wait_until(lambda: not runs(pids[0]) and not runs(pids[1]))
    assert runs(pids[2])
    original.close()

    wait_until(lambda: not runs(pids[2]))


def test_an_answer_that_came_meanwhile_is_there_however_late_it_is_asked_for(
    original: SandboxProcess,
) -> None:
    copy = original.copy(replace(SMALL, wall_seconds=0.2))
    copy.ask(f"{JOBS}:echo", b"x")
    time.sleep(0.3)

    assert copy.answer() == b"x"
