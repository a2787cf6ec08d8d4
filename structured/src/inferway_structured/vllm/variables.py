"""The environment variables of the plugin. They reach every process of vLLM's."""

from __future__ import annotations

import os

VARIABLE = "INFERWAY_STRUCTURED"
REQUIRED = "required"  # its value where vLLM is to end rather than go on without
REPORT_VARIABLE = "INFERWAY_REPORT_VALIDITY"


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
