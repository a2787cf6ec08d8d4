"""A YAML file, and flags on top of it -> settings, checked as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec

from inferway.config.checks import check
from inferway.config.converted import converted
from inferway.config.engine_settings import EngineSettings
from inferway.config.settings import ServeSettings
from inferway.errors import ConfigError
from inferway_structured.decoding import UNREADABLE

_ENGINE_KEYS = [name for name in EngineSettings.__struct_fields__ if name not in ("url", "labels")]
_LABEL = "label."  # before a label's name


def parse_engine(spec: str, place: str = "--engine") -> EngineSettings:
    """Parse --engine's `URL[,key=value…]`. Raises ConfigError that begins with `place`."""
    url, *pairs = spec.split(",")
    labels: dict[str, str] = {}
    fields: dict[str, object] = {"url": url, "labels": labels}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if equals and key.startswith(_LABEL):
            labels[key.removeprefix(_LABEL)] = value
            continue
        if not equals or key not in _ENGINE_KEYS:
            raise ConfigError(
                f"{place} {spec!r}: {pair!r} is not KEY=VALUE with KEY one of "
                + ", ".join([*_ENGINE_KEYS, f"{_LABEL}NAME"])
            )
        fields[key] = value
    return converted(fields, EngineSettings, f"{place} {spec!r}", strict=False)


def load_settings(path: Path | None, overrides: dict[str, object]) -> ServeSettings:
    """Return the file's settings, and on top of them what the flags say. Checked as a whole."""
    flags = msgspec.to_builtins(overrides)
    settings = converted(flags, ServeSettings, "flags")
    if path is not None:
        fields = _laid_over(read_yaml(path), flags)
        settings = converted(fields, ServeSettings, str(path))
    check(settings)
    return settings


def read_yaml(path: Path) -> dict[str, object]:
    """Raises ConfigError naming the file."""
    try:
        return parse_yaml(path.read_bytes(), str(path))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e


def parse_yaml(text: bytes, place: str) -> dict[str, object]:
    """Raises ConfigError naming the place."""
    try:
        fields = msgspec.yaml.decode(text)
    except UNREADABLE as e:
        raise ConfigError(f"{place}: not valid YAML: {e}") from e
    if not isinstance(fields, dict):
        raise ConfigError(f"{place}: expected keys like `engines:`, got {type(fields).__name__}")
    return fields


def _laid_over(below: object, above: object) -> object:
    """The flags' values, and where they say nothing, the file's. What is of the wrong kind in the
    file stays, to be complained about."""
    if not isinstance(above, dict) or below is None:
        return above
    if not isinstance(below, dict):
        return below
    return below | {name: _laid_over(below.get(name), value) for name, value in above.items()}
