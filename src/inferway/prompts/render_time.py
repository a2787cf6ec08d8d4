"""How long a model's chats take to be rendered, by how long those before them took."""

from __future__ import annotations

# A moment ago counts more than an hour ago: of what was seen, so much is left with each new chat.
_KEPT = 0.9
# A template may take four times as long for twice as much; nothing is foreseen beyond that.
_TIMES_LARGER = 2


class RenderTime:
    """Predicts how long one model's chats take to render from how long earlier ones took. Any
    thread may call it; of two reports at the same time one may be lost."""

    __slots__ = ("_largest", "_seconds_each")

    def __init__(self) -> None:
        self._largest = 0  # of what was told
        self._seconds_each = 0.0  # the slowest of late

    def took(self, size: int, seconds: float) -> None:
        """A chat of that size, in any unit, has taken so long."""
        self._largest = max(self._largest, size)
        self._seconds_each = max(seconds / size, self._seconds_each * _KEPT)

    def foreseen(self, size: int) -> float:
        """Return the seconds that a chat of this size will take; infinity if it is more than twice
        as large as any chat before."""
        if size > _TIMES_LARGER * self._largest:
            return float("inf")
        return size * self._seconds_each
