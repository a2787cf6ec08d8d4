"""What one rendering of a template may still do in this process, whose other requests wait.

Rule 1: what takes time counts as steps, and steps look at the clock.
Rule 2: what makes a value larger than what it was made of is checked first.

Values of a request are trees; what a template puts together itself may hold one list a thousand
times, and would fill all memory when written. So lists and dicts that templates make are weighed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any, Final

from jinja2.runtime import Undefined

from inferway.errors import HeavyError

# Of the thread's CPU. An operation is at most a few ms, and there are few between two looks.
MAX_SECONDS = 0.05
# One text, and all that a rendering makes, in characters; a chat that is rendered here has a
# million of them at most.
MAX_CHARS, MAX_CHARS_MADE = 8 << 20, 64 << 20
MAX_WEIGHT = 2 << 20  # of what a template puts together, in characters, as it would be written

# A text that is taken apart into items takes so many times its characters, at most.
_CHARS_PER_ITEM = 64
# Characters of a text, times those that are looked for at each of them.
_MAX_COMPARED = 16 << 20

_STEPS_PER_LOOK = 16
_CHARS_PER_STEP = 4096
_ITEMS_PER_STEP = 8
SHORT = 1024  # characters that cost nothing to copy
_MAX_BITS = 4096


def heavy(what: str) -> HeavyError:
    return HeavyError(f"the chat template {what}")


class RenderBudget:
    """The steps and the memory that are left for one rendering. It belongs to the thread of its
    rendering."""

    __slots__ = ("_began", "_chars_left", "_steps_left", "_weights")

    def __init__(self) -> None:
        self._steps_left = _STEPS_PER_LOOK
        self._chars_left = MAX_CHARS_MADE
        self._began: float | None = None
        # Of what the template has put together; each is kept, so that no other gets its id.
        self._weights: dict[int, tuple[object, int]] = {}

    def step(self, steps: int = 1) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            self._look()

    def _look(self) -> None:
        self._steps_left = _STEPS_PER_LOOK
        now = time.thread_time()
        if self._began is None:
            self._began = now
        elif now - self._began > MAX_SECONDS:
            raise heavy(f"takes more than {MAX_SECONDS * 1000:g} ms for a chat")

    def passes(self, chars: int) -> None:
        """So many were, or will be, read or made."""
        if chars > SHORT:
            if chars > MAX_CHARS or chars > self._chars_left:
                raise heavy(f"makes more than {MAX_CHARS_MADE} characters of a chat")
            self._chars_left -= chars
            self.step(chars // _CHARS_PER_STEP)

    def copied(self, value: Any) -> Any:
        """A part of it is about to be made, or all of it is read."""
        if isinstance(value, str):
            if len(value) > SHORT:
                self.passes(len(value))
        elif isinstance(value, list | tuple):
            self.passes(8 * len(value))
        return value

    def compared(self, value: Any) -> Any:
        """Is about to be compared with another, or looked through."""
        if isinstance(value, str):
            if len(value) > SHORT:
                self.passes(len(value))
        elif isinstance(value, list | tuple | dict):
            self.passes(self._weight(value))
        return value

    def is_large(self, value: object) -> bool:
        """Return whether comparing `value` with many others would take long."""
        return isinstance(value, str | list | tuple | dict) and self._weight(value) > 8 * SHORT

    def taken_apart(self, text: str, num_items: int) -> None:
        """Charge for a text that is about to be split into `num_items`."""
        self.passes(len(text) + _CHARS_PER_ITEM * num_items)

    def looked_through(self, text: str, wanted: object) -> None:
        """Is about to be: at each place, or for each character, for all of what is wanted."""
        self.copied(text)
        if isinstance(wanted, str) and len(text) * len(wanted) > _MAX_COMPARED:
            raise heavy("looks for a long text in a long text")

    def each(self, items: GeneratorType[Any, None, None]) -> Iterator[Any]:
        """Yield the items of a generator and charge a step before each one."""
        stepped = self._each(items)
        assert isinstance(stepped, GeneratorType)
        stepped.__qualname__ = items.__qualname__  # a template may write what they are called
        return stepped

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def concat(self, pieces: Iterable[str]) -> str:
        pieces = pieces if type(pieces) is list else list(pieces)
        chars = sum(map(len, pieces)) + len(pieces)
        if chars > SHORT:
            self.passes(chars)
        return "".join(pieces)

    def join(self, values: Sequence[object]) -> str:
        """Return the joined text of `values`, as the operator `~` of Jinja does."""
        return self.concat([v if type(v) is str else self.text(v) for v in values])

    def text(self, value: object) -> str:
        made = str(value)
        if len(made) > SHORT:
            self.passes(len(made))
        return made

    def add(self, left: Any, right: Any, made: Any = None) -> Any:
        """`made`: their sum, if it is known."""
        made = left + right if made is None else made
        if isinstance(made, str):
            if len(made) > SHORT:
                self.passes(len(made))
        elif isinstance(made, list | tuple):
            self.passes(8 * len(made))
            self._weigh(made, self._weight(left) + self._weight(right))
        return made

    def multiply(self, left: Any, right: Any) -> Any:
        if _is_number(left) and _is_number(right):
            return left * right
        long, times = (right, left) if type(left) is int else (left, right)
        if type(times) is int and isinstance(long, str | list | tuple):
            weight = max(times, 0) * self._weight(long)
            self.passes(weight)
            made = left * right
            if not isinstance(made, str):
                self._weigh(made, weight)
            return made
        raise heavy("multiplies what is neither numbers nor text")

    def power(self, left: Any, right: Any) -> Any:
        if _is_number(left) and _is_number(right) and abs(right) <= 64:
            return left**right
        raise heavy("takes a large power")

    def remainder(self, left: Any, right: Any) -> Any:
        if isinstance(left, str) and not _PLAIN_FORMAT.fullmatch(left):
            raise heavy("formats a text with widths")
        made = left % right
        if isinstance(made, str):
            self.passes(len(made))
        return made

    def made(self, value: Any) -> Any:
        """A list, tuple or dict of the template's own, which holds what may be held elsewhere."""
        try:
            self._weigh(value, self._weight_of_items(value))
        except RecursionError as e:
            raise heavy("puts together what is nested deeply") from e
        return value

    def replacing(self, text: str, old: str, new: str) -> None:
        """Is about to be done."""
        self.passes(len(text))
        if len(new) > len(old):
            self.passes(len(text) + (text.count(old) + 1) * len(new))

    def _weigh(self, value: object, weight: int) -> None:
        if weight > MAX_WEIGHT:
            raise heavy(f"puts together what has more than {MAX_WEIGHT} characters")
        self._weights[id(value)] = (value, weight)

    def _weight(self, value: object) -> int:
        """About as many characters as it would be written with."""
        if isinstance(value, str):
            return 8 + len(value)
        if value is None or isinstance(value, int | float | Undefined):
            return 8
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, list | tuple | dict):
            return self._weight_of_items(value)
        raise heavy(f"puts a {type(value).__name__} into a list")

    def _weight_of_items(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> int:
        self.step(1 + len(value) // _ITEMS_PER_STEP)
        weight = 8
        for part in (value, value.values()) if isinstance(value, dict) else (value,):
            for item in part:
                weight += 8 + len(item) if type(item) is str else self._weight(item)
        return weight


_PLAIN_FORMAT: Final = re.compile(r"(?:[^%]|%[%sd])*", re.DOTALL)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _MAX_BITS)
