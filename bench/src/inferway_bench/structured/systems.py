"""What is compared, each as its own users call it. Runs under an engine's Python, too: nothing is
imported before it is asked for but the standard library and our plugin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferway_structured.backends.cascade import Cascade, verdict
from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.check import check


@dataclass(frozen=True)
class GrammarState:
    """One instance under judgement: `fill` writes a mask into a row, `accept` takes a token."""

    fill: Callable[[Any], object]
    accept: Callable[[int], bool]


@dataclass(frozen=True)
class Prepared:
    """One schema, compiled. `cpu_ms` is the CPU time by step, where there are several."""

    start: Callable[[], GrammarState]
    unenforced: Sequence[Unenforced] = ()
    cpu_ms: dict[str, float] = field(default_factory=dict)


# A schema's text -> compiled; raises what the library raises.
System = Callable[[str], Prepared]
# Of a vocabulary, and the directory of its model.
Make = Callable[[Vocabulary, str], System]


def ours(vocabulary: Vocabulary, _: str) -> System:
    """Return all that a request's shape goes through: the check and the verdict in the API server,
    the compile in the engine core."""
    cascade = Cascade(vocabulary)
    assert vocabulary.ll_tokenizer  # made before anything is timed

    def compiled(schema: str) -> Prepared:
        times = [time.process_time()]
        check(Spec(Kind.JSON, schema))
        times.append(time.process_time())
        verdict(Spec(Kind.JSON, schema))
        times.append(time.process_time())
        made = cascade.compile(Spec(Kind.JSON, schema))
        times.append(time.process_time())
        steps = zip(("check", "verdict", "compile"), times, times[1:], strict=False)
        cpu_ms = {step: (after - before) * 1000 for step, before, after in steps}

        def start() -> GrammarState:
            grammar = made.start()
            return GrammarState(grammar.fill, lambda token: grammar.accept([token]))

        return Prepared(start, made.unenforced, cpu_ms)

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

    words = vocabulary.outlines_vocabulary
    eos = vocabulary.eos_token_ids[0]

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
