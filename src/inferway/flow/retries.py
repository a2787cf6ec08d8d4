"""Whether a request that one engine failed may be tried on another.

Only before the first byte of an answer, `attempts` engines at most, and while further tries are no
more than a share of the requests under way: a fleet that is going down must not get two and three
times the load for it. The floor lets a gateway with few requests try again at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway.config import RetrySettings


@dataclass(slots=True)
class Retries:
    """What all requests share."""

    settings: RetrySettings = field(default_factory=RetrySettings)
    active: int = 0  # requests under way
    retrying: int = 0  # of them, those in a further try
    made: int = 0
    refused: int = 0  # for want of budget
    statuses: frozenset[int] = field(init=False)  # that are tried elsewhere

    def __post_init__(self) -> None:
        self.set_settings(self.settings)

    def set_settings(self, settings: RetrySettings) -> None:
        self.settings = settings
        self.statuses = frozenset(settings.statuses)

    def may_begin(self) -> bool:
        """Whether one more request may have a second try; counted if not."""
        most = max(self.settings.floor, self.settings.share * self.active)
        if self.retrying + 1 <= most:
            return True
        self.refused += 1
        return False
