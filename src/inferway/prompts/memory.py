"""Freed memory goes back to the system. Elsewhere than on glibc nothing happens."""

from __future__ import annotations

import contextlib
import ctypes

LARGE_BYTES = 1 << 20
_KEPT_BYTES = 4 << 20  # free at the end of a heap

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def give_back_memory() -> None:
    """What is free now: after a tokenizer was loaded that is 100 to 300 MB. Takes 5 to 20 ms."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def give_back_large() -> None:
    """From now on, blocks of LARGE_BYTES or more when they are freed. By itself glibc soon takes
    blocks of up to 32 MiB from the heaps of threads, and what lives on keeps these from shrinking:
    after prompts of 4 MB, 300 to 450 MiB more stayed."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
