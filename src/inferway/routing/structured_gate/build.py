"""Settings -> a gate, or none."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from inferway.config import StructuredSettings
from inferway.errors import ConfigError
from inferway.routing.structured_gate.gate import Engines, Gate
from inferway.routing.structured_gate.warm import Post, Warmer
from inferway_structured.verdict_store import VerdictStore
from inferway_structured.verdicts import Library

_NEEDED = ("jsonschema_rs", "llguidance")  # by checks; and to compile on trial
_CURE = "pip install 'inferway[structured]'"


def build_gate(
    settings: StructuredSettings,
    engines: Engines,
    post: Post,
    *,
    clock: Callable[[], float],
    is_busy: Callable[[], bool],
    on_judged: Callable[[str, bool], None] | None = None,
    state_dir: str | None = None,
    find: Callable[[str], object] = find_spec,
) -> Gate | None:
    """Return the gate, which its owner closes; None if nothing is to be checked. `on_judged`:
    as `Quarantine` tells. `state_dir`: where verdicts are kept. `find` returns None for a library
    that cannot be imported. Raises ConfigError if what was asked for in so many words cannot be
    had."""
    if not settings.check:
        return None
    missing = [name for name in _NEEDED if find(name) is None]
    if missing and (settings.trial_compile or settings.report_validity):
        setting = "trial_compile" if settings.trial_compile else "report_validity"
        raise ConfigError(
            f"structured.{setting}: {' and '.join(missing)} cannot be imported; {_CURE}"
        )
    hint = ""
    library: Library | None = None
    if missing:
        hint = (
            "a request asks for the shape of its answer, and passes unchecked, as all of its kind"
            f" do: {' and '.join(missing)} cannot be imported; {_CURE}, or set structured.check:"
            " false"
        )
    else:
        from inferway_structured.compile.compile_trial import Trial
        from inferway_structured.library import GrammarLibrary

        trial = Trial(keep_spare=settings.trial_compile)
        if settings.trial_compile:
            trial.helper.start()
        library = GrammarLibrary(trial=trial)
    store = None if state_dir is None else VerdictStore(Path(state_dir, "verdicts.sqlite"))
    gate = Gate(
        settings, library, engines, clock=clock, hint=hint, on_judged=on_judged, store=store
    )
    if library is not None and settings.warm_per_second:
        gate.warmer = Warmer(
            post, settings.warm_per_second, gate.counts, gate.costs.took, clock, is_busy
        )
    return gate
