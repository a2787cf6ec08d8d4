"""What all pickers take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from inferway.scheduling.registry import Parameters


class PickerParameters(Parameters, frozen=True):
    """llm-d's default is one endpoint: who forwards the request there gets the whole list. We
    forward it ourselves, so without it a request may be tried as often as it may be anyway."""

    max_num_of_endpoints: Annotated[int, Meta(ge=1)] | None = None


def at_most(count: int, most: int | None) -> int:
    return count if most is None else min(count, most)
