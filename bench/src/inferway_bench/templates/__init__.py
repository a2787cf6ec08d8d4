"""Texts that benchmarks hand to other programs or answer with. In those that are JSON, `"$NAME"`
stands for the value of `name`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent


class JsonTemplates:
    """The named JSON values of one file. `words` are the same in all of them."""

    def __init__(self, file: str, **words: object) -> None:
        self._values: dict[str, Any] = msgspec.json.decode((FOLDER / file).read_bytes())
        self._words = _marked(words)

    def fill(self, template: str, **words: object) -> Any:
        """Return a value with all words filled in. Raises KeyError when there is none so named."""
        return _filled(self._values[template], self._words | _marked(words))


def _marked(words: dict[str, object]) -> dict[str, object]:
    return {f"${name.upper()}": value for name, value in words.items()}


def _filled(value: Any, words: dict[str, object]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, words) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, words) for each in value]
    return words.get(value, value) if isinstance(value, str) else value
