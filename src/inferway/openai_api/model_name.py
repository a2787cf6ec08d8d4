"""The name that an answer gives for its model, put back to what the client asked for."""

from __future__ import annotations

from inferway.openai_api.edits import with_model_named

MAX_HELD_BYTES = 8 << 20  # a larger answer in one piece, or event, passes as it is


class ModelNames:
    """Fed with an answer's body in order, whatever its pieces. Of events, those lines that are
    whole pass at once; an answer in one piece (JSON) passes at its end."""

    __slots__ = ("_held", "_is_json", "_max_held", "_model")

    def __init__(self, model: str, max_held: int = MAX_HELD_BYTES) -> None:
        self._model = model
        self._max_held = max_held
        self._held = b""
        self._is_json: bool | None = None

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now."""
        data = self._held + chunk
        if self._is_json is None and (begun := data.lstrip()):
            self._is_json = begun.startswith(b"{")
        end = 0 if self._is_json else data.rfind(b"\n") + 1
        if len(data) - end > self._max_held:
            end = len(data)
        self._held = data[end:]
        return self._renamed(data[:end])

    def end(self) -> bytes:
        """The rest."""
        rest, self._held = self._held, b""
        return self._renamed(rest)

    def _renamed(self, data: bytes) -> bytes:
        if b'"model"' not in data:
            return data
        if self._is_json:
            return with_model_named(data, self._model)
        return b"".join([self._in_line(line) for line in data.splitlines(keepends=True)])

    def _in_line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        return b"data:" + with_model_named(line[len(b"data:") :], self._model)
