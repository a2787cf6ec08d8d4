"""One process that renders and tokenizes as it is told: with Inferway, or with transformers.

`python -P prompts_worker.py SYSTEM` reads one JSON object a line from standard input, `{"model"}`
or `{"chat"}`, and answers each with one. Both systems are timed by the same lines of this file,
which imports nothing but the standard library until it knows its system: transformers has a venv of
its own, without us.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

Chat = list[dict[str, str]]


class InferwayRenderer:
    """Ours, as a library. What both systems have: `tokenize` is template and tokenizer; `ids` are
    those of what it returns."""

    def __init__(self) -> None:
        from inferway.prompts import render_requests, renderer

        self._library = render_requests
        self._renderer = renderer.Renderer()
        self._key = ""

    def load(self, model: str) -> None:
        wanted = self._library.GetOrCreateTokenizerKeyRequest(model, is_local=True)
        self._key = self._renderer.get_or_create_tokenizer_key(wanted)

    def tokenize(self, chat: Chat) -> object:
        request = self._library.RenderChatRequest(self._key, chat)
        return self._renderer.render_chat(request).input_ids

    def ids(self, tokenized: Any) -> Sequence[int]:
        ids: list[int] = tokenized.tolist()
        return ids


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


def answer(system: InferwayRenderer | Transformers, asked: dict[str, Any]) -> dict[str, Any]:
    """Load a model, or tokenize a chat and return its nanoseconds, wall clock and CPU of all
    threads; both systems must find the same ids, of which it has a digest."""
    if "model" in asked:
        system.load(asked["model"])
        return {}
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    tokenized = system.tokenize(asked["chat"])
    wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    ids = system.ids(tokenized)
    digest = hashlib.sha256(array.array("I", ids).tobytes()).hexdigest()
    return {"wall": wall, "cpu": cpu, "tokens": len(ids), "digest": digest}


def main(name: str) -> None:
    """Say that it has started, and answer until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    system = InferwayRenderer() if name == "Inferway" else Transformers()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(system, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
