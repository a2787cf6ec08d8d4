"""CPU time and memory of a process and all its descendants, from /proc.

Field numbers are those of proc(5): 14 utime, 15 stime, 16 cutime, 17 cstime, in clock ticks
(10 ms); 4 is the parent; 24 the resident set in pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process as /proc/PID/stat shows it."""

    pid: int
    parent: int
    cpu_seconds: float  # user + system, its ended and waited-for children included
    resident_bytes: int


def parse_stat(text: str) -> ProcessStat:
    """The line of /proc/PID/stat; the command in parentheses may hold spaces and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()  # fields[0] is field 3, the state
    ticks = sum(int(fields[number - 3]) for number in (14, 15, 16, 17))
    return ProcessStat(
        pid=int(head.split(maxsplit=1)[0]),
        parent=int(fields[1]),
        cpu_seconds=ticks / _TICKS_PER_SECOND,
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def process_tree(root: int, proc: Path = Path("/proc")) -> list[ProcessStat]:
    """Return `root` and all its living descendants. Raises ProcessLookupError if `root` is gone."""
    children: dict[int, list[ProcessStat]] = {}
    by_pid: dict[int, ProcessStat] = {}
    for stat in _all_processes(proc):
        by_pid[stat.pid] = stat
        children.setdefault(stat.parent, []).append(stat)
    if root not in by_pid:
        raise ProcessLookupError(f"no process {root} in {proc}")
    tree = [by_pid[root]]
    for stat in tree:  # grows while we walk it
        tree.extend(children.get(stat.pid, ()))
    return tree


def cpu_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """Return the user and system time that the tree of `root` has used so far, in seconds."""
    return sum(stat.cpu_seconds for stat in process_tree(root, proc))


def resident_bytes(root: int, proc: Path = Path("/proc")) -> int:
    """Return the resident memory of the tree of `root`; shared pages count for each process."""
    return sum(stat.resident_bytes for stat in process_tree(root, proc))


def _all_processes(proc: Path) -> Iterator[ProcessStat]:
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            text = (directory / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we were listing
        yield parse_stat(text)
