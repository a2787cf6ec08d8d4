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

from inferway_bench.structured.systems import SYSTEMS, Prepared, vocabulary_of

_PACKAGES = ("llguidance", "outlines_core", "jsonschema_rs", "vllm", "xgrammar")
_JUDGING_SECONDS = 60.0  # for all instances of a schema, beside the compile
_WARMING = ('{"type":"object","properties":{"a":{"oneOf":[{"type":"null"},{"not":{}}]}}}', "{}")


class Judge:
    """One system with the tokens of a model."""

    def __init__(self, name: str, model: str) -> None:
        vocabulary = vocabulary_of(model)
        self._words, self._eos = vocabulary.num_words, vocabulary.eos_token_ids[0]
        self._system = SYSTEMS[name](vocabulary, model)
        self._warm()

    def judged(self, case: Any, seconds: float) -> dict[str, Any]:
        """Return what a fork finds, or that it had no time or memory left: to compile within
        `seconds`, and then to judge."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._find(case, writing)
        os.close(writing)
        found, limit = b"", seconds
        while select.select([reading], [], [], limit)[0]:
            part = os.read(reading, 1 << 20)
            if not part:
                break
            found, limit = found + part, _JUDGING_SECONDS
        else:
            os.kill(child, signal.SIGKILL)
            found = b""
        os.close(reading)
        os.waitpid(child, 0)
        lines = [json.loads(line) for line in found.splitlines()]
        return {k: v for line in lines for k, v in line.items()} or {
            "error": "out of time or memory"
        }

    def _warm(self) -> None:
        """What is imported and made but once is not part of a compile, nor are the pages that a
        fork has to map again."""
        for schema in _WARMING:
            with suppress(Exception):
                self._system(schema).start().fill(np.zeros(self._words, np.int32))

    def _find(self, case: Any, writing: int) -> None:
        """Write a line when the schema is compiled, and one when it is judged. Never returns."""
        with os.fdopen(writing, "w") as out:
            self._warm()
            began, own = time.perf_counter(), time.process_time()
            try:
                prepared = self._system(case["schema"])
                prepared.start().fill(np.zeros(self._words, np.int32))  # a compile needs a mask
            except Exception as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                said = lines[-1 if "Error" in lines[0] else 0][:200]
                out.write(json.dumps({"error": said}) + "\n")
            else:
                took, own = time.perf_counter() - began, time.process_time() - own
                head = {
                    "seconds": took,
                    "cpu_ms": prepared.cpu_ms or {"compile": own * 1000},
                    "unenforced": [(one.place, one.keyword) for one in prepared.unenforced],
                }
                out.write(json.dumps(head) + "\n")
                out.flush()
                out.write(json.dumps(self._instances(prepared, case["instances"])) + "\n")
            out.flush()
            os._exit(0)

    def _instances(self, prepared: Prepared, instances: Any) -> dict[str, Any]:
        mask_ns: list[int] = []  # of valid ones
        taken, ordered = [], []
        for instance in instances:
            kept = mask_ns if instance["valid"] else []
            taken.append(self._takes(prepared, instance["tokens"], kept))
            other = instance["ordered"]
            ordered.append(taken[-1] if other is None else self._takes(prepared, other, kept))
        return {"taken": taken, "ordered": ordered, "mask_ns": mask_ns}

    def _takes(self, prepared: Prepared, tokens: list[int], mask_ns: list[int]) -> bool:
        """Return whether the masks let every token come, and the end after them."""
        try:
            answer = prepared.start()
            row = np.zeros(self._words, np.int32)
            for token in (*tokens, self._eos):
                began = time.perf_counter_ns()
                answer.fill(row)
                mask_ns.append(time.perf_counter_ns() - began)
                if not int(row[token >> 5]) >> (token & 31) & 1 or not answer.accept(token):
                    return False
        except Exception:  # a library's own failure refuses the instance
            return False
        return True


def main() -> None:
    """Judge what standard input brings."""
    name, model, seconds, gib = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (gib << 30, gib << 30))
    os.nice(10)
    judge = Judge(name, model)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a result
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    print(json.dumps(versions), file=results, flush=True)
    for line in sys.stdin:
        print(json.dumps(judge.judged(json.loads(line), seconds)), file=results, flush=True)


if __name__ == "__main__":
    main()
