"""What a process of glibc does with large blocks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes
from inferway.prompts.freed_memory import LARGE_BYTES, give_back_large

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]  # the fourth: mapped blocks

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Mallinfo2
libc.malloc.restype = ctypes.c_void_p
if {told}:
    give_back_large()
libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(16 << 20))))  # glibc learns from it
before = libc.mallinfo2().d
libc.malloc(ctypes.c_size_t(LARGE_BYTES))
print(libc.mallinfo2().d - before)
"""


def num_mapped(*, told: bool) -> int:
    program = [sys.executable, "-c", PROGRAM.format(told=told)]
    return int(subprocess.run(program, check=True, capture_output=True).stdout)


def test_large_blocks_are_mapped_each_by_itself_and_so_go_back_when_they_are_freed() -> None:
    assert [num_mapped(told=False), num_mapped(told=True)] == [0, 1]
