"""Messages for requests that have no grammar, or one that fails."""

from __future__ import annotations

from typing import TypeVar

from inferway_structured.errors import InferwayError, SaturatedError, SpecError

E = TypeVar("E", bound=InferwayError)

# Why answers are cut off: what the grammar itself is to blame for. Whoever asks again for the same
# ends in the same way; all other reasons are faults of ours.
TOO_LONG = "the grammar takes too long, or too much memory, at this point"
TOO_LONG_IN_ALL = "the grammar has taken too long in all"
TOO_MANY = "the grammar has too many alternatives at this point"
REGEX_TOO_LONG = "a regular expression of the grammar takes too long at this point"
NO_TOKEN = "the grammar allows no token at this point"
OF_THE_SHAPE = frozenset({TOO_LONG, TOO_LONG_IN_ALL, TOO_MANY, REGEX_TOO_LONG, NO_TOKEN})


class QuarantinedError(SpecError):
    """The spec is refused, because compiling it was killed with its process, now or not long ago,
    or because engines were lost with it."""


def again(error: E) -> E:
    """Return an equal error: each request that gets one raises its own, because a raised error
    grows by where it was raised."""
    if isinstance(error, SpecError):
        return type(error)(str(error), place=error.place, keyword=error.keyword, param=error.param)
    return type(error)(*error.args)


def saturated(num_builds: int) -> SaturatedError:
    return SaturatedError(f"{num_builds} grammars are compiled or wait for it; try again later")


def took_longer(seconds: float) -> SpecError:
    return SpecError(f"took longer than {seconds:g} s to compile")
