"""Is it on? INFERWAY_STRUCTURED=1, or --additional-config '{"inferway": {"structured": true}}'.

The environment reaches every process of vLLM's, and is known at once. The configuration is known
where it is made, in the processes that start others; from there it goes into the environment.
"""

from __future__ import annotations

import functools
import os
import sys

TYPE_CHECKING = False  # `typing` would be the slowest import here
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "INFERWAY_STRUCTURED"
REPORT_VARIABLE = "INFERWAY_REPORT_VALIDITY"


def register() -> None:
    """Idempotent. In a process that reads arguments, all waits until it knows its configuration;
    the engine core is told by the environment."""
    if is_off():
        return
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is not None:
        _watch(arguments.EngineArgs)
    if is_on() and "vllm.v1.engine.core" in sys.modules:
        from inferway.structured.vllm.install import install_core

        install_core()


def is_on() -> bool:
    return says_yes(VARIABLE)


def says_yes(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "on", "yes")


def is_off() -> bool:
    """Said so: the configuration is not asked."""
    return os.environ.get(VARIABLE, "").lower() in ("0", "false", "off", "no")


def _watch(engine_args: Any) -> None:
    """Has the configuration looked at when it is made."""
    original = engine_args.create_engine_config
    if hasattr(original, "inferway_original"):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        from inferway.structured.vllm.settings import settings_of

        if not is_off() and (settings_of(vllm_config).structured or is_on()):
            from inferway.structured.vllm.install import install

            os.environ[VARIABLE] = "1" if install() else "0"  # for the processes started from here
        return vllm_config

    create_engine_config.inferway_original = original  # type: ignore[attr-defined]
    engine_args.create_engine_config = create_engine_config
