"""Specs with which engines were lost, and that are refused for a while.

what happened                                             then
an engine was lost while this spec alone was there        a strike; the second one: refused
the spec was answered by an engine, to the end            strikes are forgotten, and it gets none
                                                          any more: engines are lost for other
                                                          reasons, and half of all requests may
                                                          have the same schema

When an engine is lost, the requests there fail one after the other. The first of them is judged,
while all the others still count as being there. (A spec whose compile is killed is refused by
`inferway_structured.verdicts`.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from inferway_structured.cache import RecentlyUsed, Remembered

STRIKES = 2
INCIDENT_SECONDS = 5.0  # failures at one engine within it are one loss
MAX_REMEMBERED = 4096


class Quarantine:
    """Specs are known by their key."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float],
        most: int = MAX_REMEMBERED,
        tell: Callable[[str, bool], None] | None = None,
    ) -> None:
        """A spec is refused for `seconds`, by the clock; `most` are remembered. `tell`: others that
        send to the same engines, of each strike, and of each first answer: the spec's key, and
        whether it was struck."""
        self._refused: Remembered[str, str] = Remembered(seconds, most, clock)
        self._strikes: RecentlyUsed[str, int] = RecentlyUsed(most)
        self._proven: RecentlyUsed[str, bool] = RecentlyUsed(most)
        self.tell = tell

    def refusal(self, key: str) -> str | None:
        """Return why it is refused; None if it is not."""
        return self._refused.get(key)

    def strike(self, key: str) -> None:
        """Count that an engine was lost while it alone was there."""
        if key in self._proven:
            return
        if self.tell is not None:
            self.tell(key, True)
        self._strike(key)

    def hear(self, key: str, struck: bool) -> None:
        """Take over an outcome that another process has told."""
        if not struck:
            self._answered(key)
        elif key not in self._proven:
            self._strike(key)

    def _strike(self, key: str) -> None:
        strikes = (self._strikes.drop(key) or 0) + 1
        if strikes < STRIKES:
            self._strikes.put(key, strikes)
            return
        self._refused.put(key, f"{strikes} engines were lost while they worked on it alone")

    def answered(self, key: str) -> None:
        """Forget strikes: an engine has answered it to the end."""
        if self.tell is not None and key not in self._proven:
            self.tell(key, False)
        self._answered(key)

    def _answered(self, key: str) -> None:
        self._strikes.drop(key)
        self._proven.put(key, True)

    def is_proven(self, key: str) -> bool:
        """Return whether an engine has answered it to the end."""
        return key in self._proven

    def __len__(self) -> int:
        """Return how many specs are refused now."""
        return len(self._refused)


@dataclass(slots=True)
class InFlight:
    """Keeps which specs are at which engine."""

    _keys: dict[str, Counter[str]] = field(default_factory=dict)
    _judged: dict[str, float] = field(default_factory=dict)  # engine -> its last loss

    def sent(self, engine: str, key: str) -> None:
        self._keys.setdefault(engine, Counter())[key] += 1

    def over(self, engine: str, key: str) -> None:
        at = self._keys.get(engine)
        if at is None:
            return
        at[key] -= 1
        if at[key] <= 0:
            del at[key]
        if not at:
            del self._keys[engine]

    def failed_beside(self, engine: str, now: float) -> None:
        """Note that a request that asks for no shape has failed there."""
        self._note(engine, now)

    def was_alone(self, engine: str, key: str, num_requests: int, now: float) -> bool:
        """Return whether all requests at `engine` have this key, when one with it has failed there.
        There are `num_requests`, or were until it failed, this one among them. Return False for the
        others that fail of the same loss."""
        judged = self._judged.get(engine)
        if judged is not None and now - judged < INCIDENT_SECONDS:
            return False
        self._note(engine, now)
        at = self._keys.get(engine, Counter())
        return list(at) == [key] and at[key] >= num_requests

    def _note(self, engine: str, now: float) -> None:
        if len(self._judged) >= MAX_REMEMBERED:
            self._judged.clear()
        self._judged[engine] = now
