"""The costs of compiling a spec, and the choice of the engine that compiles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inferway.model import Column, Endpoint
from inferway_structured.cache import RecentlyUsed

MAX_SPECS = 4096  # for each engine, and of all
MAX_ENGINES = 1024
LEAST_MS = 5.0  # what takes less bends nothing


class CompileCosts:
    """Times are engines' own, the last one counts. Specs are known by their key."""

    def __init__(self) -> None:
        self._took_ms: RecentlyUsed[str, float] = RecentlyUsed(MAX_SPECS)
        self._seen: RecentlyUsed[str, RecentlyUsed[str, bool]] = RecentlyUsed(MAX_ENGINES)

    def took(self, key: str, milliseconds: float) -> None:
        """Remember that compiling the spec took an engine so long."""
        if milliseconds >= LEAST_MS:
            self._took_ms.put(key, milliseconds)
        else:
            self._took_ms.drop(key)

    def see(self, engine: str, key: str) -> bool:
        """Remember that the spec goes to the engine now. Return True for the first time, as far as
        that is remembered."""
        seen = self._seen.get(engine)
        if seen is None:
            seen = RecentlyUsed(MAX_SPECS)
            self._seen.put(engine, seen)
        if seen.get(key):
            return False
        seen.put(key, True)
        return True

    def forget(self, engine: str) -> None:
        """Forget what an engine has compiled: it is started anew."""
        self._seen.drop(engine)

    def missing_ms(
        self, keys: Sequence[str], endpoints: Sequence[Endpoint], is_told: Callable[[str], bool]
    ) -> Column | None:
        """Return what each endpoint would still have to compile, in milliseconds; None if none of
        the specs takes long. Only of engines for which `is_told` holds can that be said."""
        slow = [(key, took) for key in keys if (took := self._took_ms.get(key)) is not None]
        if not slow:
            return None
        missing = np.zeros(len(endpoints))
        for row, endpoint in enumerate(endpoints):
            if is_told(endpoint.engine):
                seen = self._seen.get(endpoint.engine) or ()
                missing[row] = sum([took for key, took in slow if key not in seen])
        return missing
