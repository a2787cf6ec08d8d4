"""Prefill on one real engine, decode on the other: the gateway's headers reach what stands before
the engine that decodes, and do there what llm-d's sidecar does with them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

from tests.engines import client
from tests.engines.chats import CHAT, Request, chat, user
from tests.engines.conftest import ServingProgram
from tests.engines.engine import RealEngine
from tests.engines.gateway import cached, engine_of, send, wait_until_believed

# As llm-d's own sample has it: deploy/config, pd-epp-config.yaml.
CONFIG = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disagg-headers-handler
- type: approx-prefix-cache-producer
  parameters:
    maxPrefixBlocksToMatch: 256
    lruCapacityPerServer: 31250
- type: prefix-cache-scorer
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters:
    nonCachedTokens: 64
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: prefix-based-pd-decider
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: max-score-picker
  - pluginRef: prefix-cache-scorer
    weight: 2
  - pluginRef: queue-scorer
    weight: 1
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: max-score-picker
  - pluginRef: prefix-cache-scorer
    weight: 2
  - pluginRef: queue-scorer
    weight: 1
"""

PREFILLER = "x-prefiller-host-port"


class Sidecar(ThreadingHTTPServer):
    """As llm-d's routing sidecar: asks the engine that the header names for one token first, then
    its own for the answer. It moves no KV blocks; that is the engines' part."""

    daemon_threads = True

    def __init__(self, engine: RealEngine) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.engine = engine
        self.told: list[str | None] = []  # of each prompt, which engine is to compute it

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Passing(BaseHTTPRequestHandler):
    server: Sidecar

    def do_GET(self) -> None:
        self._answer(client.get(self.server.engine.url + self.path))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if self.path == CHAT:
            prefiller = self.headers.get(PREFILLER)
            self.server.told.append(prefiller)
            if prefiller is not None:
                body: dict[str, Any] = {**json.loads(raw), "max_tokens": 1}
                client.post(f"http://{prefiller}{self.path}", body)
        self._answer(client.post(self.server.engine.url + self.path, raw))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _answer(self, answer: client.Answer) -> None:
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"] or "text/plain")
        self.send_header("content-length", str(len(answer.raw)))
        self.end_headers()
        self.wfile.write(answer.raw)


@contextmanager
def sidecar(engine: RealEngine) -> Iterator[Sidecar]:
    with Sidecar(engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_prompt_that_is_not_held_is_computed_where_the_header_says(
    engines: Sequence[RealEngine], new_log: Callable[[str], Path], tmp_path: Path
) -> None:
    prefill, decode = engines
    path = tmp_path / "epp.yaml"
    path.write_text(CONFIG)
    with sidecar(decode) as before:
        flags = [
            *("--engine", f"{prefill.url},label.llm-d.ai/role=prefill"),
            *("--engine", f"http://{before.name},label.llm-d.ai/role=decode"),
            *("--scheduling", str(path)),
        ]
        with ServingProgram(["serve", *flags], new_log("stages"), "kv-aware") as program:
            request = somebodys()
            answers = []
            for _ in range(2):
                answers.append(send(program.url, request))
                blocks = cached(answers[-1]).prompt_blocks
                wait_until_believed(program.url, request, before.name, blocks)
                wait_until_believed(program.url, request, prefill.name, blocks)

    assert [engine_of(answer) for answer in answers] == [before.name] * 2
    assert before.told[-2:] == [prefill.name, None]  # the second time it is held
    assert cached(send(prefill.url, request)).blocks > 0


def somebodys() -> Request:
    words = Random(5).choices(("one", "two", "three", "four", "five"), k=200)
    return chat("stages", [user(" ".join(words))])
