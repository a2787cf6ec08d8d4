"""The columns of all endpoints, as several processes of one gateway share them.

The first process follows the engines and writes what it hears of them; the others read it. What a
process has sent itself it counts in rows of its own, and all processes' rows are added up when
somebody asks. A number of eight bytes is read and written whole, so nothing has to be locked; a
reader may see some columns of a row a moment before others.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from inferway.fleet.columns import EndpointColumns
from inferway.model import FIGURES, Candidates, Column, Cut, HolderId
from inferway.scheduling.expected_ttft.sent_log import ROW

Numbers = NDArray[np.float64]

# Rows that there is room for. Memory that was never written to takes none.
MOST_ENDPOINTS = 32_768
_ITEM_BYTES = 8  # of the largest kind
_COUNTED = ("in_flight", "recent_prefill_tokens")  # by each process for itself
_ROWS_EACH = len(_COUNTED) + 2  # of a process: these, its places at engines, and what it has sent
_NUM_PLACES = 4  # figures of a process's places (`shared_places`)
_HEARD = tuple(
    name for name, each in FIGURES.items() if not each.is_matched and name not in _COUNTED
)
_KINDS = {name: FIGURES[name].kind for name in _HEARD} | {"scraped": "f8"}


def shared_memory(processes: int) -> int:
    """Return the file descriptor of memory for the columns that so many processes share: it is
    gone when the last of them has closed it. Raises OSError."""
    memory = os.memfd_create("inferway-columns", os.MFD_CLOEXEC)
    rows = len(_KINDS) + _ROWS_EACH * processes + 1
    os.ftruncate(memory, rows * MOST_ENDPOINTS * _ITEM_BYTES)
    return memory


class SharedColumns(EndpointColumns):
    """`place` 0 is the process that follows the engines. `in_flight` and `recent_prefill_tokens`
    are sums over all processes, as of the last `add_up`."""

    is_alone = False

    def __init__(self, memory: int, place: int) -> None:
        """`memory`: as `shared_memory` has made it; it may be closed afterwards."""
        buffer = mmap.mmap(memory, 0)
        whole = np.frombuffer(buffer, np.uint8).reshape(-1, MOST_ENDPOINTS * _ITEM_BYTES)
        self._heard = {
            name: whole[at].view(kind)[:MOST_ENDPOINTS]
            for at, (name, kind) in enumerate(_KINDS.items())
        }
        own = whole[len(_KINDS) :].view("f8")
        processes = len(own) // _ROWS_EACH
        # a row for each process: what it has sent of late (scheduling.expected_ttft.sent_log)
        self.sent: Numbers = own[:processes, :ROW]
        self._counted: Numbers = own[processes : 3 * processes].reshape(
            -1, len(_COUNTED), MOST_ENDPOINTS
        )
        self._own = self._counted[place]
        # requests that hold places at engines, and of each process's places some figures
        # (fleet.shared_places)
        self.at_engines: Numbers = own[3 * processes : 4 * processes]
        self.places: Numbers = own[-1, : _NUM_PLACES * processes].reshape(_NUM_PLACES, processes)
        self.place = place
        self._writes = place == 0
        super().__init__()

    def grow(self, size: int) -> None:
        """Have so many rows. Of those that are new, nothing is known yet. Raises ValueError if
        there is no room for so many."""
        if size > MOST_ENDPOINTS:
            raise ValueError(f"{size} endpoints: expected at most {MOST_ENDPOINTS}")
        new = slice(len(self), size)
        for name, shared in self._heard.items():
            if self._writes and name in FIGURES:
                shared[new] = FIGURES[name].unknown
            column = shared[:size]
            column.setflags(write=self._writes)
            setattr(self, name, column)
        for name, figure in FIGURES.items():
            if name not in self._heard:
                column = np.full(size, figure.unknown, figure.kind)
                column.setflags(write=not figure.is_matched)
                setattr(self, name, column)
        self.add_up()

    def book(self, holder: HolderId, new_tokens: int) -> None:
        in_flight, recent = self._own
        in_flight[holder] += 1
        recent[holder] += new_tokens

    def num_booked(self, candidates: Candidates) -> float:
        return float(self._own[0, list(candidates.rows)].sum())

    def note_cut(self, holder: HolderId, cut: Cut) -> None:
        if self._writes:
            super().note_cut(holder, cut)

    def nobody_follows(self) -> None:
        """The process that wrote the states has ended: the others each have their own from now
        on."""
        self._heard["states"] = self._heard["states"].copy()
        self.grow(len(self))
        self.states.setflags(write=True)
        super().nobody_follows()

    def release(self, holder: HolderId) -> None:
        self._own[0, holder] -= 1

    def count_elsewhere(self, holder: HolderId, requests: float, tokens: float) -> None:
        """Count in the row of the process that follows the engines, which sends no requests."""
        self._own[0, holder] += requests
        self._own[1, holder] += tokens

    def forget_elsewhere(self, holder: HolderId) -> None:
        self._own[:, holder] = 0.0

    def own(self) -> tuple[Column, Column]:
        """Return the requests in flight, and recent tokens, that all our processes have sent."""
        self.add_up()
        elsewhere = self._counted[0, :, : len(self)]
        return self.in_flight - elsewhere[0], self.recent_prefill_tokens - elsewhere[1]

    def add_up(self) -> None:
        counted = self._counted[:, :, : len(self)]
        np.add.reduce(counted[:, 0], 0, out=self.in_flight)
        np.add.reduce(counted[:, 1], 0, out=self.recent_prefill_tokens)

    def fade(self, share: float) -> None:
        self._own[1, : len(self)] *= share

    def clear(self, holder: HolderId) -> None:
        super().clear(holder)
        self._counted[:, :, holder] = 0.0
        self.at_engines[:, holder] = 0.0
        self.places[-1, self.place] += 1.0

    def process_ended(self, place: int) -> None:
        """Count nothing more of a process that has ended: its requests have ended with it."""
        self._counted[place, :, : len(self)] = 0.0
        self.at_engines[place, : len(self)] = 0.0
        self.places[:-1, place] = 0.0
        self.places[-1, place] += 1.0
        self.sent[place] = 0.0
