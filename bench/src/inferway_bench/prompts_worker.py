"""One process that renders and tokenizes as it is told: with Inferway, or with transformers.

`python -P prompts_worker.py SYSTEM` reads one JSON object a line from standard input and answers
each with one. Both systems are timed by the same lines of this file, which imports nothing but the
standard library until it knows its system: transformers has a venv of its own, without us.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Chat = list[dict[str, str]]

# Calls of what is too short for the clock, after one that is not timed.
_CALLS = {"render": 50, "fetch": 2_000}


class InferwayRenderer:
    """Ours, as a library. What both systems have: `tokenize` is template and tokenizer, `render`
    the template alone; `ids` are those of what `tokenize` returns. `fetch` is what a request does
    to get at the loaded model."""

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
        return model.template().render(self._library.seen_by_template(request, special_tokens))

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
        ids: list[int] = found["input_ids"]
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


def answer(system: InferwayRenderer | Transformers, do: str, **details: Any) -> dict[str, Any]:
    """Do what is asked, and return its nanoseconds: wall clock, CPU of all threads. Both systems
    must find the same ids and texts, of which it has a digest."""
    call: Callable[..., Any] = getattr(system, do)
    times = _CALLS.get(do, 1)
    if times > 1:
        call(**details)
    cpu_before, before = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(times):
        result = call(**details)
    wall, cpu = time.perf_counter_ns() - before, time.process_time_ns() - cpu_before
    found: dict[str, Any] = {"wall": wall / times, "cpu": cpu / times}
    if do == "tokenize":
        ids = system.ids(result)
        found |= {"tokens": len(ids), "digest": _digest(array.array("I", ids).tobytes())}
    if do == "render":
        found["digest"] = _digest(result.encode())
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(name: str) -> None:
    """Say that it has started, and answer until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    system = InferwayRenderer() if name == "Inferway" else Transformers()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(system, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
