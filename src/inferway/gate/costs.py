"""What compiling a spec takes, and which engine has it compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.model import Column, Endpoint

MAX_SPECS = 4096  # for each engine, and of all
MAX_ENGINES = 1024
LEAST_MS = 5.0  # what takes less bends nothing


@dataclass(slots=True)
class CompileCosts:
    """Times are engines' own, the last one counts. Specs are known by their key."""

    _took_ms: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _seen: OrderedDict[str, OrderedDict[str, None]] = field(default_factory=OrderedDict)

    def took(self, key: str, milliseconds: float) -> None:
        """Remember that compiling the spec took an engine so long."""
        if milliseconds >= LEAST_MS:
            self._took_ms[key] = milliseconds
            self._took_ms.move_to_end(key)
            if len(self._took_ms) > MAX_SPECS:
                self._took_ms.popitem(last=False)
        else:
            self._took_ms.pop(key, None)

    def see(self, engine: str, key: str) -> bool:
        """Remember that the spec goes to the engine now. Return True for the first time, as far as
        that is remembered."""
        seen = self._seen.setdefault(engine, OrderedDict())
        if len(self._seen) > MAX_ENGINES:
            self._seen.popitem(last=False)
        if key in seen:
            seen.move_to_end(key)
            return False
        seen[key] = None
        if len(seen) > MAX_SPECS:
            seen.popitem(last=False)
        return True

    def forget(self, engine: str) -> None:
        """Forget what an engine has compiled: it is started anew."""
        self._seen.pop(engine, None)

    def missing_ms(
        self, keys: Sequence[str], endpoints: Sequence[Endpoint], is_told: Callable[[str], bool]
    ) -> Column | None:
        """Return what each endpoint would still have to compile, in milliseconds; None if none of
        the specs takes long. Only of engines for which `is_told` holds can that be said."""
        slow = [(key, took) for key in keys if (took := self._took_ms.get(key)) is not None]
        if not slow:
            return None
        missing = np.zeros(len(endpoints))
        nothing: Mapping[str, None] = {}
        for row, endpoint in enumerate(endpoints):
            if is_told(endpoint.engine):
                seen = self._seen.get(endpoint.engine, nothing)
                missing[row] = sum([took for key, took in slow if key not in seen])
        return missing
