"""What all requests on their way to engines share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inferway.flow.retries import Retries
from inferway.flow.standing import Standing


@dataclass(slots=True)
class Traffic:
    """`clock` counts seconds."""

    clock: Callable[[], float]
    standing: Standing = field(default_factory=Standing)
    retries: Retries = field(default_factory=Retries)
