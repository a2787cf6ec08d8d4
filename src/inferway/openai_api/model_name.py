"""The name that an answer gives for its model, put back to what the client asked for."""

from __future__ import annotations

from inferway.openai_api.edits import with_model_named
from inferway_structured.sse import WholeEvents, with_data

MAX_HELD_BYTES = 8 << 20  # a larger answer in one piece, or event, passes as it is


class ModelRenamer:
    """Renames the model in one answer, whose body is fed in order, in pieces cut anywhere. Whole
    events of a stream pass at once; an answer in one piece (JSON) passes at its end."""

    __slots__ = ("_events", "_held", "_is_json", "_max_held", "_model")

    def __init__(self, model: str, max_held: int = MAX_HELD_BYTES) -> None:
        self._model = model
        self._max_held = max_held
        self._events = WholeEvents(max_held)
        self._held = b""  # of an answer in one piece
        self._is_json: bool | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on with the next piece."""
        held, self._held = self._held + chunk, b""
        if self._is_json is None and (begun := held.lstrip()):
            self._is_json = begun.startswith(b"{")
        if self._is_json is False:
            return self._renamed(self._events.whole(held))
        if len(held) > self._max_held:
            return self._renamed(held)
        self._held = held
        return b""

    def end(self) -> bytes:
        """Return the rest of the answer."""
        return self._renamed(self._held + self._events.rest())

    def _renamed(self, data: bytes) -> bytes:
        if b'"model"' not in data:
            return data
        if self._is_json:
            return with_model_named(data, self._model)
        return with_data(data, lambda event: with_model_named(event, self._model))
