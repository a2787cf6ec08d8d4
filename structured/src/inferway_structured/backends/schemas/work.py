"""The work that a schema may cost before something else is to look through it.

A few hundred characters can be looked through for minutes: references to what has references, and
each is followed; each branch is held against each. All of that is Python, which holds the GIL, so
it is counted where none of it can pass: at every look at a node (nodes.py).
"""

from __future__ import annotations

from math import inf

# Of values that are no schemas, and of what is written as JSON to be compared: what takes a look.
CHARS_READ = 20
CHARS_WRITTEN = 100


class TooLargeError(Exception):
    """A document takes more looks than are left."""


class Work:
    """The work that may still be spent on a document, counted in visits of nodes (about 2 µs each,
    with what follows from one)."""

    __slots__ = ("left",)

    def __init__(self, most: float = inf) -> None:
        self.left = most

    def spend(self, amount: float = 1.0) -> None:
        """Take so much away. Raises TooLargeError if that is more than is left."""
        self.left -= amount
        if self.left < 0:
            raise TooLargeError
