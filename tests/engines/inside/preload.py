"""Run by vLLM's Python: has imported vLLM, and starts engines by forking itself.

An engine is three processes, which import the same modules for 10 to 15 s each on a slow core.
Here they are forked from a process that has them already; what they run then is vLLM's own and
unchanged. What multiprocessing would spawn is forked as well, with the open files and the
`__main__` that a spawned process has.

On standard input a line for each engine: `{"arguments", "environment", "log"}`. On standard output
the id of its process, the first of a session of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from typing import Any, NoReturn

import setproctitle

MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)

spawn = util.spawnv_passfds


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    setproctitle.getproctitle()  # finds the arguments' place, before the environment moves
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for them
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become_engine(order["arguments"], order["environment"], order["log"])
        print(pid, file=answers, flush=True)


def become_engine(arguments: list[str], environment: dict[str, str], log: str) -> NoReturn:
    """Do what `vllm ARGUMENTS` does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
    os.dup2(1, 2)
    close_files_but({0, 1, 2})
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = ["vllm", *arguments]
    util.spawnv_passfds = fork_as_if_spawned
    sys.exit(importlib.import_module("vllm.entrypoints.cli.main").main())


def fork_as_if_spawned(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """In place of multiprocessing's function of that name, which starts a new Python."""
    *_, code, kind = args
    if kind != "--multiprocessing-fork":  # the tracker of shared memory
        return spawn(path, args, passfds)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        atexit._clear()
        gc.freeze()  # what the parent has, of files that are closed now
        close_files_but({0, 1, 2, *passfds})
        sys.argv = [sys.argv[0], kind]
        exec(code, {})
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:  # never back into what the parent was doing
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def close_files_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the listing's own
                os.close(int(name))


if __name__ == "__main__":
    main()
    os._exit(0)  # libraries complain of what has not been freed
