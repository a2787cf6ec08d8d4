"""What those who wait for a build are told when there is nothing for them."""

from __future__ import annotations

from typing import TypeVar

from inferway.errors import InferwayError, SaturatedError, SpecError

E = TypeVar("E", bound=InferwayError)


def again(error: E) -> E:
    """Each who gets it raises his own: a raised error grows by where it was raised."""
    if isinstance(error, SpecError):
        return type(error)(str(error), place=error.place, keyword=error.keyword, param=error.param)
    return type(error)(*error.args)


def saturated(num_builds: int) -> SaturatedError:
    return SaturatedError(f"{num_builds} grammars are compiled or wait for it; try again later")


def took_longer(seconds: float) -> SpecError:
    return SpecError(f"took longer than {seconds:g} s to compile")
