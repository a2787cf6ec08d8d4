"""`inferway` in vLLM's --additional-config, and the plugin's environment variables, which reach
every process of vLLM's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inferway_structured.errors import ConfigError

KEY = "inferway"

VARIABLE = "INFERWAY_STRUCTURED"
REQUIRED = "required"  # its value where vLLM is to end rather than go on without
REPORT_VARIABLE = "INFERWAY_REPORT_VALIDITY"

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
    compile_delay_seconds: float = 0.0  # for tests: every compile takes so much longer


def settings_of(vllm_config: Any) -> Settings:
    """Return the settings of an engine. Raises ConfigError for what is no setting of ours."""
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
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


def is_on() -> bool:
    return says_yes(VARIABLE) or is_required()


def is_required() -> bool:
    return os.environ.get(VARIABLE, "").lower() == REQUIRED


def end_if_required(why: str) -> None:
    """Raises SystemExit, which is no fault of vLLM's and has no traceback."""
    if is_required():
        raise SystemExit(
            f"Inferway's structured output cannot be used, and it is required here: {why}; to "
            "start with vLLM's own structured output instead: --allow-stock, or "
            f"{VARIABLE}=1 in the place of {REQUIRED}"
        )


def says_yes(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "on", "yes")


def is_off() -> bool:
    """Return whether it is switched off in so many words: then the configuration is not asked."""
    return os.environ.get(VARIABLE, "").lower() in ("0", "false", "off", "no")
