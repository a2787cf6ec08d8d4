"""Is it on? INFERWAY_STRUCTURED=1 (or `required`), or
--additional-config '{"inferway": {"structured": true}}'.

The environment reaches every process of vLLM's, and is known at once. The configuration is known
where it is made, in the processes that start others; from there it goes into the environment.
Where it is required, vLLM does not start without it.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from inferway_structured.vllm.settings import (
    VARIABLE,
    end_if_required,
    is_off,
    is_on,
    settings_of,
)


def register() -> None:
    """Look whether it is on. To do it twice changes nothing. In a process that reads arguments, all
    waits until it knows its configuration; the engine core is told by the environment."""
    if is_off():
        return
    arguments = sys.modules.get("vllm.engine.arg_utils")
    if arguments is not None:
        _watch(arguments.EngineArgs)
    if is_on() and "vllm.v1.engine.core" in sys.modules:
        from inferway_structured.vllm.install import install_core

        install_core()


def _watch(engine_args: Any) -> None:
    """Has the configuration looked at when it is made."""
    original = engine_args.create_engine_config
    if hasattr(original, "inferway_original"):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = original(self, *args, **kwargs)
        if not is_off() and (settings_of(vllm_config).structured or is_on()):
            from inferway_structured.vllm.install import install

            why = install()
            if why is not None:
                end_if_required(why)
            os.environ[VARIABLE] = "1" if why is None else "0"  # for processes started from here
        return vllm_config

    create_engine_config.inferway_original = original  # type: ignore[attr-defined]
    engine_args.create_engine_config = create_engine_config
