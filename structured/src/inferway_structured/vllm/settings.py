"""`inferway` in vLLM's --additional-config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inferway_structured.errors import ConfigError
from inferway_structured.vllm.variables import REPORT_VARIABLE, says_yes

KEY = "inferway"

_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that vLLM's configuration or the environment may give."""

    structured: bool = False
    refuse_unenforced: bool = False  # of requests with `strict`; else named, as without it
    report_validity: bool = False  # a stream says before [DONE] whether its answer is valid
    overlap: bool = True  # prefill while the grammar compiles
    overlap_held: int = 4  # requests that may hold their prefill's blocks for a grammar
    jump_forward: bool = True  # where speculative decoding is configured
    disk: str = ""  # a folder for compiled indexes; empty: none are kept
    compile_delay_seconds: float = 0.0  # for tests: every compile takes so much longer


def settings_of(vllm_config: Any) -> Settings:
    """Return the settings of an engine. Raises ConfigError for what is no setting of ours."""
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
    return _settings(given)


def _settings(given: object) -> Settings:
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"additional_config: {KEY}: expected an object, got {given!r}; for example "
            f'{{"{KEY}": {{"structured": true}}}}'
        )
    for name, value in given.items():
        if name not in kinds:
            raise ConfigError(
                f"additional_config: {KEY}: the key {name!r} is unknown; expected one of "
                f"{', '.join(kinds)}"
            )
        if not _is_a(kinds[name], value):
            raise ConfigError(
                f"additional_config: {KEY}: {name}: expected {_WORDS[kinds[name]]}, got {value!r}"
            )
    return Settings(**{"report_validity": says_yes(REPORT_VARIABLE), **given})


def _is_a(kind: type, value: object) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
