"""CPU time of a process tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferway_bench.cpu import cpu_seconds, parse_stat, process_tree, resident_bytes

TICK = 1 / os.sysconf("SC_CLK_TCK")


def stat_line(pid: int, parent: int, ticks: tuple[int, int, int, int], name: str = "wrk") -> str:
    times = " ".join(map(str, ticks))
    return (
        f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194304 9 0 0 0 {times} 20 0 1 0 "
        "12345 9000000 50 18446744073709551615 1 1 0 0\n"
    )


def write_proc(proc: Path, *lines: str) -> Path:
    for line in lines:
        directory = proc / line.split(maxsplit=1)[0]
        directory.mkdir()
        (directory / "stat").write_text(line)
    (proc / "meminfo").write_text("not a process")
    return proc


def test_cpu_time_is_user_and_system_of_the_process_and_its_ended_children() -> None:
    stat = parse_stat(stat_line(7, 1, (100, 20, 3, 1)))

    assert stat.cpu_seconds == pytest.approx(124 * TICK)


def test_a_command_with_spaces_and_parentheses_is_read() -> None:
    stat = parse_stat(stat_line(7, 3, (1, 0, 0, 0), name="tokio (worker) 1) S 9"))

    assert (stat.pid, stat.parent) == (7, 3)


def test_resident_memory_is_in_bytes() -> None:
    stat = parse_stat(stat_line(7, 1, (0, 0, 0, 0)))

    assert stat.resident_bytes == 50 * os.sysconf("SC_PAGE_SIZE")


def test_a_tree_is_the_root_and_all_its_descendants_and_nobody_else(tmp_path: Path) -> None:
    proc = write_proc(
        tmp_path,
        stat_line(10, 1, (10, 0, 0, 0)),
        stat_line(11, 10, (20, 0, 0, 0)),
        stat_line(12, 11, (40, 0, 0, 0)),
        stat_line(13, 1, (800, 0, 0, 0)),
    )

    assert {stat.pid for stat in process_tree(10, proc)} == {10, 11, 12}
    assert cpu_seconds(10, proc) == pytest.approx(70 * TICK)
    assert resident_bytes(10, proc) == 3 * 50 * os.sysconf("SC_PAGE_SIZE")


def test_a_root_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError, match="no process 10"):
        process_tree(10, write_proc(tmp_path, stat_line(11, 1, (0, 0, 0, 0))))


def test_this_process_uses_cpu_and_memory() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert resident_bytes(os.getpid()) > 2**20
