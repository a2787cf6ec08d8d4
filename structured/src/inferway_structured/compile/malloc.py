"""Figures of the C library's malloc for this process, which is what grammar libraries use."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2, malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloced_bytes() -> int:
    """Return the bytes in use now, of all threads; 0 where malloc does not tell (glibc below 2.33,
    musl)."""
    mallinfo2 = _function("mallinfo2")
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def give_back() -> None:
    """Give what is free back to the kernel. Takes milliseconds."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


@cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
