"""One process that renders and tokenizes as it is told: with Inferway, or with transformers.

`python -P worker.py SYSTEM` reads one JSON object a line from standard input and answers each
with one. Both systems are timed by the same lines of this file, which imports nothing but the
standard library until it knows its system: transformers has a venv of its own, without us.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Chat = list[dict[str, str]]
Json = dict[str, Any]

# Calls per measurement of what is too short for the clock.
_FETCHES = 2_000
_RENDERINGS = 50


class InferwayRenderer:
    """Ours, as a library. What both systems have: `tokenize` is template and tokenizer, `render`
    the template alone, `encode` the encoder alone; `ids` are those of what two of these return.
    `fetch` is what a request does to get at the loaded model."""

    def __init__(self) -> None:
        from inferway.prompts import render_requests, renderer

        self._library = render_requests
        self._renderer = renderer.Renderer()
        self._wanted = render_requests.GetOrCreateTokenizerKeyRequest("")
        self._key = ""

    def load(self, model: str) -> None:
        self._wanted = self._library.GetOrCreateTokenizerKeyRequest(model, is_local=True)
        self._key = self._renderer.get_or_create_tokenizer_key(self._wanted)

    def tokenize(self, chat: Chat) -> object:
        request = self._library.RenderChatRequest(self._key, chat)
        return self._renderer.render_chat(request).input_ids

    def ids(self, tokenized: Any) -> Sequence[int]:
        ids: list[int] = tokenized.tolist()
        return ids

    def render(self, chat: Chat) -> str:
        request = self._library.RenderChatRequest(self._key, chat)
        model = self._renderer.loaded(self._key)
        special_tokens = model.tokenizer.special_tokens
        return model.template().render(self._library.chat_input(request, special_tokens))

    def encode(self, text: str) -> object:
        tokenizer = self._renderer.loaded(self._key).tokenizer
        return tokenizer.encode(text, add_special_tokens=False)

    def fetch(self) -> object:
        return self._renderer.loaded(self._renderer.get_or_create_tokenizer_key(self._wanted))

    def compile(self) -> None:
        template = self._renderer.loaded(self._key).template()
        type(template)(template.source)


class Transformers:
    """The engine's own library."""

    def __init__(self) -> None:
        self._library = import_module("transformers")
        self._library.utils.logging.set_verbosity_error()
        self._tokenizer: Any = None

    def load(self, model: str) -> None:
        self._tokenizer = self._library.AutoTokenizer.from_pretrained(model)

    def tokenize(self, chat: Chat) -> object:
        return self._tokenizer.apply_chat_template(chat, add_generation_prompt=True)

    def ids(self, found: Any) -> Sequence[int]:
        ids: list[int] = found[0].ids if isinstance(found, list) else found["input_ids"]
        return ids

    def render(self, chat: Chat) -> str:
        text: str = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False
        )
        return text

    def fetch(self) -> object:
        """The object is the key: there is nothing to look up."""
        return self._tokenizer

    def compile(self) -> None:
        module = import_module("transformers.utils.chat_template_utils")
        # Behind the cache that `apply_chat_template` has.
        module._compile_jinja_template.__wrapped__(self._tokenizer.chat_template)

    def encode(self, text: str) -> object:
        tokenizer = self._tokenizer.backend_tokenizer
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)


class Worker:
    """One method for each question. Times are nanoseconds: wall clock, CPU of all threads."""

    def __init__(self, system: InferwayRenderer | Transformers) -> None:
        self._system = system

    def hello(self) -> Json:
        return {}

    def load(self, model: str) -> Json:
        wall, cpu, _ = _timed(lambda: self._system.load(model))
        return {"wall": wall, "cpu": cpu}

    def tokenize(self, chat: Chat) -> Json:
        """Template and tokenizer."""
        wall, cpu, tokenized = _timed(lambda: self._system.tokenize(chat))
        return {"wall": wall, "cpu": cpu, **_found(self._system.ids(tokenized))}

    def render(self, chat: Chat) -> Json:
        text = self._system.render(chat)
        wall, cpu = _timed_often(lambda: self._system.render(chat), _RENDERINGS)
        return {"wall": wall, "cpu": cpu, "digest": hashlib.sha256(text.encode()).hexdigest()}

    def render_bytes(self, chat: Chat) -> Json:
        """The most that one rendering has allocated at a time, as tracemalloc sees it."""
        return {"bytes": _peak(lambda: self._system.render(chat))}

    def encode(self, chat: Chat) -> Json:
        """The encoder alone, on the text of `chat`."""
        text = self._system.render(chat)
        wall, cpu, encoded = _timed(lambda: self._system.encode(text))
        return {"wall": wall, "cpu": cpu, **_found(self._system.ids(encoded))}

    def fetch(self) -> Json:
        wall, cpu = _timed_often(self._system.fetch, _FETCHES)
        return {"wall": wall, "cpu": cpu}

    def fetch_bytes(self) -> Json:
        return {"bytes": _peak(self._system.fetch)}

    def compile(self) -> Json:
        wall, cpu, _ = _timed(self._system.compile)
        return {"wall": wall, "cpu": cpu}


def _found(ids: Sequence[int]) -> Json:
    """The ids as a digest: both systems must find the same ones."""
    digest = hashlib.sha256(array.array("I", ids)).hexdigest()
    return {"tokens": len(ids), "digest": digest}


def _timed(call: Callable[[], object]) -> tuple[int, int, Any]:
    cpu_before = time.process_time_ns()
    before = time.perf_counter_ns()
    result = call()
    wall = time.perf_counter_ns() - before
    return wall, time.process_time_ns() - cpu_before, result


def _timed_often(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Wall and CPU time of a call."""

    def calls() -> None:
        for _ in range(times):
            call()

    wall, cpu, _ = _timed(calls)
    return wall / times, cpu / times


def _peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()  # what is kept for good is not the next one's
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def main(system: str) -> None:
    """Answer until standard input ends. An error is an answer, too."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    worker = Worker(InferwayRenderer() if system == "Inferway" else Transformers())
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(worker, question.pop("do"))(**question)
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
