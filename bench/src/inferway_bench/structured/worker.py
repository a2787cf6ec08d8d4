"""The systems that are compared, each as its own users call it; and one of them judging schemas,
each in a fork of its own that can be killed.

`python -m inferway_bench.structured.worker SYSTEM MODEL SECONDS GIB` reads cases from standard
input, a line each, and prints a result for each, after the versions of its libraries when it is
ready. It runs under an engine's Python, too: nothing is imported before it is asked for but the
standard library and our plugin.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from inferway_structured.backends.cascade import Cascade, verdict
from inferway_structured.backends.llguidance import takes_text
from inferway_structured.backends.schemas.weight import weight_of
from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.compile.compile_trial import compile_on_trial, trial_jobs
from inferway_structured.errors import HeavyError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import json_spec, packed
from inferway_structured.validate.check import check
from inferway_structured.validate.regexes import measured

# What one process remembers of a schema, and another one does not.
_CACHES: Sequence[Any] = (weight_of, measured, takes_text)
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
                cpu_ms = prepared.cpu_ms or {"compile": own * 1000}
                cpu_ms |= _in_gateway(prepared)
                head = {
                    "seconds": took,
                    "cpu_ms": cpu_ms,
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


def _in_gateway(prepared: Prepared) -> dict[str, float]:
    if prepared.gateway is None:
        return {}
    for cached in _CACHES:
        cached.cache_clear()
    began = time.process_time()
    prepared.gateway()
    return {"gateway": (time.process_time() - began) * 1000}


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


@dataclass(frozen=True)
class GrammarState:
    """One instance under judgement: `fill` writes a mask into a row, `accept` takes a token."""

    fill: Callable[[Any], object]
    accept: Callable[[int], bool]


@dataclass(frozen=True)
class Prepared:
    """One schema, compiled. `cpu_ms` is the CPU time by step, where there are several. `gateway`
    does what another process does before."""

    start: Callable[[], GrammarState]
    unenforced: Sequence[Unenforced] = ()
    cpu_ms: dict[str, float] = field(default_factory=dict)
    gateway: Callable[[], None] | None = None


# A schema's text -> compiled; raises what the library raises.
System = Callable[[str], Prepared]
# Of a vocabulary, and the directory of its model.
Make = Callable[[Vocabulary, str], System]


def ours(vocabulary: Vocabulary, _: str) -> System:
    """Return all that a request's shape goes through: in the API server it is read and checked, in
    the engine core compiled, before that in a child if it is heavy. Beside it, what a gateway
    before the engine does: it reads and checks the shape itself, and finds the verdict."""
    cascade = Cascade(vocabulary)
    trials = trial_jobs(cascade)
    assert vocabulary.ll_tokenizer  # made before anything is timed

    def compiled(schema: str) -> Prepared:
        times = [time.process_time()]
        spec = json_spec(json.loads(schema), "")
        times.append(time.process_time())
        check(spec)
        times.append(time.process_time())
        try:
            made = cascade.compile_light(spec)
        except HeavyError:
            made = trials.finish(spec, compile_on_trial(packed(spec)))
        times.append(time.process_time())
        steps = zip(("read", "check", "compile"), times, times[1:], strict=False)
        cpu_ms = {step: (after - before) * 1000 for step, before, after in steps}

        def gateway() -> None:
            asked = json_spec(json.loads(schema), "")
            check(asked)
            verdict(asked)

        def start() -> GrammarState:
            grammar = made.start()
            return GrammarState(grammar.fill, lambda token: grammar.accept([token]))

        return Prepared(start, made.unenforced, cpu_ms, gateway)

    return compiled


def llguidance(**options: bool) -> Make:
    """Return the system that llguidance is with these options."""

    def system(vocabulary: Vocabulary, _: str) -> System:
        import llguidance

        tokenizer = vocabulary.ll_tokenizer

        def compiled(schema: str) -> Prepared:
            given: Any = options
            source = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=given)
            made = llguidance.LLMatcher(tokenizer, source, log_level=0)
            if made.is_error():
                raise ValueError(made.get_error())

            def start() -> GrammarState:
                matcher: Any = made.deep_copy()

                def fill(row: Any) -> None:
                    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

                return GrammarState(fill, matcher.consume_token)

            return Prepared(start)

        return compiled

    return system


def xgrammar(vocabulary: Vocabulary, _: str) -> System:
    """Return xgrammar as vLLM 0.32 calls it (v1/structured_output/backend_xgrammar.py), on one
    thread, its cache off."""
    import torch
    import xgrammar

    compiler = xgrammar.GrammarCompiler(
        vocabulary.tokenizer_info, max_threads=1, cache_enabled=False
    )
    bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.size)
    torch.set_num_threads(1)

    def compiled(schema: str) -> Prepared:
        made = compiler.compile_json_schema(schema, any_whitespace=True, separators=None)

        def start() -> GrammarState:
            matcher = xgrammar.GrammarMatcher(made)

            def fill(row: Any) -> None:
                # vLLM's bitmask is torch's; so the row is, and filled in place
                matcher.fill_next_token_bitmask(bitmask, 0)
                row[:] = bitmask.numpy()[0]

            return GrammarState(fill, matcher.accept_token)

        return Prepared(start)

    return compiled


def outlines(vocabulary: Vocabulary, _: str) -> System:
    """Return outlines-core: a schema's regex, and its index."""
    import outlines_core
    from outlines_core.json_schema import build_regex_from_schema

    eos = vocabulary.eos_token_ids[0]
    ids: dict[bytes, list[int]] = {}
    for token, written in enumerate(vocabulary.token_bytes):
        if written is not None and token not in vocabulary.eos_token_ids:
            ids.setdefault(written, []).append(token)
    words = outlines_core.Vocabulary(eos, ids)

    def compiled(schema: str) -> Prepared:
        index = outlines_core.Index(build_regex_from_schema(schema), words)

        def start() -> GrammarState:
            guide = outlines_core.Guide(index)

            def accept(token: int) -> bool:
                if token == eos:
                    return bool(guide.is_finished())
                guide.advance(token, False)
                return True

            def fill(row: Any) -> None:
                guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)

            return GrammarState(fill, accept)

        return Prepared(start)

    return compiled


def vllm_auto(vocabulary: Vocabulary, model: str) -> System:
    """Return what stock vLLM does with `auto` once its engine has taken xgrammar, which a simple
    first request makes it do: what its check lets through is xgrammar's, whatever it chose."""
    from types import SimpleNamespace

    from vllm.config import StructuredOutputsConfig
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.tokenizers import get_tokenizer

    compile_it = xgrammar(vocabulary, model)
    config = StructuredOutputsConfig()
    about: Any = SimpleNamespace(is_diffusion=False)
    tokenizer: Any = get_tokenizer(model)

    def compiled(schema: str) -> Prepared:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
        params._validate_structured_outputs(about, config, tokenizer)
        return compile_it(schema)

    return compiled


SYSTEMS: dict[str, Make] = {
    "inferway": ours,
    "llguidance": llguidance(),
    "llguidance, coerce_one_of": llguidance(coerce_one_of=True),
    "llguidance, lenient": llguidance(lenient=True),
    "xgrammar, as vLLM calls it": xgrammar,
    "outlines-core": outlines,
    "vLLM auto, locked on xgrammar": vllm_auto,
}
OURS, VLLM = "inferway", "vLLM auto, locked on xgrammar"
BESIDE_ENGINE = ("xgrammar, as vLLM calls it", VLLM)  # run under the engine's Python


def vocabulary_of(path: str) -> Vocabulary:
    """Return the vocabulary of a model's directory, with the sizes in its config.json."""
    text = Path(path, "tokenizer.json").read_text()
    config = json.loads(Path(path, "config.json").read_text())
    named = json.loads(Path(path, "tokenizer_config.json").read_text())["eos_token"]
    added = json.loads(text)["added_tokens"]
    eos = next(token["id"] for token in added if token["content"] == named)
    return Vocabulary(text, size=config["vocab_size"], eos_token_ids=(eos,))


if __name__ == "__main__":
    main()
