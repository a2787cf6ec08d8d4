"""The requests that one machine's processes have sent just now, in memory that all of them read.

They tell each other of each request, and a message takes 0.3 to 2.3 ms. Requests that come within
this time would all be sent where nothing seems to wait. So each process writes here what it sends
when it sends it, and until the message has come the others count it from here.

A process's row has the last ENTRIES requests, each at the place of its number: numbers, holders,
tokens. The number is written last, and each is written whole; so who finds the number that comes
next reads the request that has it. Nothing is locked.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inferway.model import HolderId

ENTRIES = 256  # of which others may not have heard; of more they count the last messages alone
MOST_PLUGINS = 8  # whose requests there is room for; those of others are known when they are told
ROW = 3 * ENTRIES * MOST_PLUGINS  # numbers


class SentLog:
    """One process's part: it writes its own row, and reads the others'."""

    __slots__ = ("_heard", "_holders", "_numbers", "_own", "_tokens")

    def __init__(self, memory: NDArray[np.float64], own: int, plugin: int = 0) -> None:
        """`memory`: ROW numbers for each process, 0 where nothing was sent; row `own` is this
        one's. `plugin`: whose requests these are, below MOST_PLUGINS."""
        columns = np.split(memory, 3 * MOST_PLUGINS, axis=1)
        self._numbers, self._holders, self._tokens = columns[3 * plugin : 3 * plugin + 3]
        self._own = own
        self._heard: dict[int, int] = {}  # by row: the number of the last request told of

    def sent(self, number: int, holder: HolderId, tokens: float) -> None:
        """Write a request that is on its way to the holder. Numbers rise by one."""
        at = (self._own, number % ENTRIES)
        self._holders[at], self._tokens[at] = holder, tokens
        self._numbers[at] = number

    def heard(self, row: int, number: int) -> None:
        """Note that the process of a row has told of its request of this number. Nothing of it is
        unheard before it has told of one. Rows that there are not are ignored."""
        if row < len(self._numbers):
            self._heard[row] = number

    def gone(self, row: int) -> None:
        """Forget a process that has ended, whose row is 0 again."""
        self._heard.pop(row, None)

    def unheard(self) -> Iterator[tuple[HolderId, float]]:
        """Yield holder and tokens of requests that others have sent and not told of yet."""
        numbers = self._numbers.item
        for row, number in self._heard.items():
            number += 1
            while numbers(row, number % ENTRIES) == number:
                at = (row, number % ENTRIES)
                yield int(self._holders.item(at)), self._tokens.item(at)
                number += 1
