"""What is compared, each as its own users call it. Runs under an engine's Python, too: nothing is
imported before it is asked for but the standard library and our plugin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from inferway_structured.backends.cascade import Cascade, verdict
from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.check import check
from inferway_structured.grammar import Grammar, Unenforced
from inferway_structured.spec import Kind, Spec


class Answer(Protocol):
    """One instance under judgement."""

    def fill(self, row: Any) -> None: ...

    def accept(self, token: int) -> bool: ...


class Prepared(Protocol):
    """One schema, compiled. `cpu_ms`: CPU time by step, where there are several."""

    unenforced: Sequence[Unenforced]
    cpu_ms: dict[str, float]

    def start(self) -> Answer: ...


# A schema's text -> compiled; raises what the library raises.
System = Callable[[str], Prepared]
# Of a vocabulary, and the directory of its model.
Make = Callable[[Vocabulary, str], System]


def ours(vocabulary: Vocabulary, _: str) -> System:
    """All that a request's shape goes through: the check and the verdict in the API server, the
    compile in the engine core."""
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
        return _Started(lambda: _Ours(made.start()), made.unenforced, cpu_ms)

    return compiled


class _Started:
    def __init__(
        self,
        begin: Callable[[], Answer],
        unenforced: Sequence[Unenforced] = (),
        cpu_ms: dict[str, float] | None = None,
    ) -> None:
        self.unenforced = unenforced
        self.cpu_ms = cpu_ms or {}
        self._begin = begin

    def start(self) -> Answer:
        return self._begin()


class _Ours:
    def __init__(self, grammar: Grammar) -> None:
        self.fill = grammar.fill
        self._grammar = grammar

    def accept(self, token: int) -> bool:
        return self._grammar.accept([token])


def llguidance(**options: bool) -> Make:
    def system(vocabulary: Vocabulary, _: str) -> System:
        import llguidance

        tokenizer = vocabulary.ll_tokenizer

        def compiled(schema: str) -> Prepared:
            given: Any = options
            source = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=given)
            matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            return _Started(lambda: _LLGuidance(matcher.deep_copy()))

        return compiled

    return system


class _LLGuidance:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, row: Any) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))


def xgrammar(vocabulary: Vocabulary, _: str) -> System:
    """As vLLM 0.32 calls it (v1/structured_output/backend_xgrammar.py), on one thread, its cache
    off."""
    import torch
    import xgrammar

    compiler = xgrammar.GrammarCompiler(
        vocabulary.tokenizer_info, max_threads=1, cache_enabled=False
    )
    bitmask = xgrammar.allocate_token_bitmask(1, vocabulary.size)

    class Judged:
        def __init__(self, made: Any) -> None:
            self._matcher = xgrammar.GrammarMatcher(made)

        def fill(self, row: Any) -> None:
            # vLLM's bitmask is torch's; so the row is, and filled in place
            self._matcher.fill_next_token_bitmask(bitmask, 0)
            row[:] = bitmask.numpy()[0]

        def accept(self, token: int) -> bool:
            return bool(self._matcher.accept_token(token))

    torch.set_num_threads(1)

    def compiled(schema: str) -> Prepared:
        made = compiler.compile_json_schema(schema, any_whitespace=True, separators=None)
        return _Started(lambda: Judged(made))

    return compiled


def outlines(vocabulary: Vocabulary, _: str) -> System:
    import outlines_core
    from outlines_core.json_schema import build_regex_from_schema

    words = vocabulary.outlines_vocabulary
    eos = vocabulary.eos_token_ids[0]

    class Judged:
        def __init__(self, index: Any) -> None:
            self._guide = outlines_core.Guide(index)

        def fill(self, row: Any) -> None:
            self._guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)

        def accept(self, token: int) -> bool:
            if token == eos:
                return bool(self._guide.is_finished())
            self._guide.advance(token, False)
            return True

    def compiled(schema: str) -> Prepared:
        index = outlines_core.Index(build_regex_from_schema(schema), words)
        return _Started(lambda: Judged(index))

    return compiled


def vllm_auto(vocabulary: Vocabulary, model: str) -> System:
    """What stock vLLM does with `auto` once its engine has taken xgrammar, which a simple first
    request makes it do: what its check lets through is xgrammar's, whatever that check chose."""
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
    """Of a model's directory: tokenizer.json, and the sizes in config.json."""
    text = Path(path, "tokenizer.json").read_text()
    config = json.loads(Path(path, "config.json").read_text())
    named = json.loads(Path(path, "tokenizer_config.json").read_text())["eos_token"]
    added = json.loads(text)["added_tokens"]
    eos = next(token["id"] for token in added if token["content"] == named)
    return Vocabulary(text, size=config["vocab_size"], eos_token_ids=(eos,))
