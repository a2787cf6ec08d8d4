"""A pause of the whole process, as a busy machine makes it."""

from time import monotonic


def stand_still(seconds: float) -> None:
    """Keep the event loop, and all else here, from running."""
    until = monotonic() + seconds
    while monotonic() < until:
        pass
