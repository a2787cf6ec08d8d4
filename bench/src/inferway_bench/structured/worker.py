"""One system judging schemas, each in a fork of its own that can be killed.

`python -m inferway_bench.structured.worker SYSTEM MODEL SECONDS GIB` reads cases from standard
input, a line each, and prints a result for each, after the versions of its libraries when it is
ready. Standard library only, besides our plugin.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from inferway_bench.structured.systems import SYSTEMS, Prepared, System, vocabulary_of

_PACKAGES = ("llguidance", "outlines_core", "jsonschema_rs", "vllm", "xgrammar")
_JUDGING_SECONDS = 60.0  # for all instances of a schema, beside the compile


def main() -> None:
    name, model, seconds, gib = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    limit = gib << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.nice(10)
    vocabulary = vocabulary_of(model)
    system = SYSTEMS[name](vocabulary, model)
    words, eos = vocabulary.num_words, vocabulary.eos_token_ids[0]
    _warm(system, words)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a result
    results.write(json.dumps(_versions()) + "\n")
    results.flush()
    for line in sys.stdin:
        results.write(_forked(system, json.loads(line), seconds, words, eos) + "\n")
        results.flush()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _warm(system: System, words: int) -> None:
    """What is imported and made but once is not part of a compile, nor are the pages that a fork
    has to map again."""
    for schema in (
        '{"type":"object","properties":{"a":{"oneOf":[{"type":"null"},{"not":{}}]}}}',
        "{}",
    ):
        with suppress(Exception):
            system(schema).start().fill(np.zeros(words, np.int32))


def _forked(system: System, case: Any, seconds: float, words: int, eos: int) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(system, case, writing, words, eos)
    os.close(writing)
    try:
        parts = list(_parts(reading, seconds))
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        parts = []
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    lines = b"".join(parts).decode().splitlines()
    if not lines:
        return json.dumps({"error": "out of time or memory"})
    head = json.loads(lines[0])
    return json.dumps({**head, **json.loads(lines[1])} if len(lines) > 1 else head)


def _parts(reading: int, seconds: float) -> Any:
    """What the child writes: once compiled, and once judged."""
    limit = seconds
    while True:
        if not select.select([reading], [], [], limit)[0]:
            raise TimeoutError
        part = os.read(reading, 1 << 20)
        if not part:
            return
        yield part
        limit = _JUDGING_SECONDS


def _child(system: System, case: Any, writing: int, words: int, eos: int) -> None:
    """Never returns."""
    with os.fdopen(writing, "w") as out:
        _warm(system, words)
        began, own = time.perf_counter(), time.process_time()
        try:
            prepared = system(case["schema"])
            prepared.start().fill(np.zeros(words, np.int32))  # who compiles needs a first mask
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            out.write(json.dumps({"error": lines[-1 if "Error" in lines[0] else 0][:200]}) + "\n")
        else:
            took, own = time.perf_counter() - began, time.process_time() - own
            head = {
                "seconds": took,
                "cpu_ms": prepared.cpu_ms or {"compile": own * 1000},
                "unenforced": [(one.place, one.keyword) for one in prepared.unenforced],
            }
            out.write(json.dumps(head) + "\n")
            out.flush()
            out.write(json.dumps(_judged(prepared, case["instances"], words, eos)) + "\n")
        out.flush()
        os._exit(0)


def _judged(prepared: Prepared, instances: Any, words: int, eos: int) -> dict[str, Any]:
    mask_ns: list[tuple[int, int]] = []  # wall time, and the thread's own
    taken, ordered = [], []
    for instance in instances:
        kept = mask_ns if instance["valid"] else []
        taken.append(_takes(prepared, [*instance["tokens"], eos], words, kept))
        other = instance["ordered"]
        ordered.append(taken[-1] if other is None else _takes(prepared, [*other, eos], words, kept))
    return {"taken": taken, "ordered": ordered, "mask_ns": mask_ns}


def _takes(
    prepared: Prepared, tokens: list[int], words: int, mask_ns: list[tuple[int, int]]
) -> bool:
    """Whether the masks let every token come, and the end after them."""
    try:
        answer = prepared.start()
        row = np.zeros(words, np.int32)
        for token in tokens:
            own, began = time.thread_time_ns(), time.perf_counter_ns()
            answer.fill(row)
            took = time.perf_counter_ns() - began
            mask_ns.append((took, time.thread_time_ns() - own))
            if not int(row[token >> 5]) >> (token & 31) & 1:
                return False
            if not answer.accept(token):
                return False
    except Exception:  # a library's own failure refuses the instance
        return False
    return True


if __name__ == "__main__":
    main()
