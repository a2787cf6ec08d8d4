"""The gateway before two real engines that hand KV blocks to each other: the first one computes all
prompts, the second one answers, and fails when it cannot get the blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anthropic
import openai
import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, Request, assistant, chat, user
from tests.engines.client import Answer
from tests.engines.conftest import serve, serve_in_two_legs, wait_until_known_to_hand_over
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine
from tests.engines.gateway import ask_directly, cached, engine_of, scores, send, wait_until_believed
from tests.engines.legs import MESSAGES, RESPONSES, counted, log_probabilities, text_of
from tests.engines.nixl import (
    ASKS_FOR_REFERENCE,
    ENDED_LEASES,
    LEASE_SECONDS,
    NixlEngine,
    fetched,
    metric,
)
from tests.engines.record_kv_transfer import bodies, text
from tests.engines.test_kv_references import completion, computed_alone, reference
from tests.engines.test_kv_references import log_probabilities as of_completion
from tests.engines.waiting import wait_until

Pair = tuple[NixlEngine, NixlEngine]

PATHS = [CHAT, COMPLETION, RESPONSES, MESSAGES]
ANSWER_TOKENS = 6
KV_USAGE = "vllm:kv_cache_usage_perc"


def body_of(path: str, number: int, **more: object) -> dict[str, Any]:
    """Of a prompt that no other number has."""
    if path in (CHAT, COMPLETION):
        more["logprobs"] = 1 if path == COMPLETION else True
    return {**bodies(number, ANSWER_TOKENS)[path], **more}


def number_of(path: str, *, streamed: bool) -> int:
    return 200 + 2 * PATHS.index(path) + streamed


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_the_answer_is_that_of_one_engine(
    nixl_engines: Pair, two_legs: str, path: str, streamed: bool
) -> None:
    prefill, decode = nixl_engines
    body = body_of(path, number_of(path, streamed=streamed), stream=streamed)
    before = fetched(decode)

    answer = client.post(two_legs + path, body)
    alone = client.post(prefill.url + path, body)

    assert (answer.status, alone.status) == (200, 200)
    assert answer.headers["x-inferway-prefill-engine"] == prefill.name
    assert answer.headers["x-inferway-engine"] == decode.name
    assert text_of(path, answer) == text_of(path, alone) != ""
    if path in (CHAT, COMPLETION):
        told = log_probabilities(path, answer)
        assert len(told) == ANSWER_TOKENS
        assert told == pytest.approx(log_probabilities(path, alone), abs=1e-4)
    wait_until(lambda: fetched(decode) > before, "the engine counts what it fetched")


def test_usage_is_that_of_one_engine(nixl_engines: Pair, two_legs: str) -> None:
    """Prompt and answer are counted once, and cached is what the prefill engine had."""
    body = body_of(CHAT, 220)

    first, again = [client.post(two_legs + CHAT, body).json["usage"] for _ in range(2)]
    alone = client.post(nixl_engines[0].url + CHAT, body).json["usage"]

    assert {**first, "prompt_tokens_details": None} == {**alone, "prompt_tokens_details": None}
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again == alone
    assert alone["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_index_is_exact_on_both_engines(nixl_engines: Pair, two_legs: str) -> None:
    client.post(two_legs + CHAT, body_of(CHAT, 221))
    last = as_chat(221)
    blocks = cached(client.post(nixl_engines[0].url + CHAT, {**last.body, "max_tokens": 1}))
    for engine in nixl_engines:
        wait_until_believed(two_legs, last, engine.name, blocks.prompt_blocks)

    differing, num_hits = [], 0
    for path in (CHAT, RESPONSES, MESSAGES):
        for streamed in (False, True):
            request = as_chat(number_of(path, streamed=streamed))
            believed = scores(two_legs, request)
            for engine in nixl_engines:
                told = ask_directly(two_legs, engine, request)
                num_hits += told.blocks > 0
                if min(believed[engine.name], told.reusable_blocks) != told.blocks:
                    differing.append((path, streamed, engine.name, believed, told))

    assert not differing
    assert num_hits > 0


def as_chat(number: int) -> Request:
    """The same prompt on the path that the gateway tells scores of."""
    return chat(str(number), [{"role": "user", "content": text(number)}])


def test_a_reference_from_a_client_is_refused(nixl_engines: Pair, two_legs: str) -> None:
    prefill = nixl_engines[0]
    for params in (reference(prefill, "a client's"), ASKS_FOR_REFERENCE, {"do_remote_prefill": 1}):
        body = completion("a client's", kv_transfer_params=params)

        answer = client.post(two_legs + COMPLETION, body)

        assert answer.status == 400
        assert answer.json["error"]["param"] == "kv_transfer_params"


class ComputesAnother(BaseHTTPRequestHandler):
    """An engine that computes another prompt than it is asked for. All else is as it is."""

    engine: RealEngine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(client.get(self.engine.url + self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "do_remote_decode" in (body.get("kv_transfer_params") or {}):
            body["prompt"] = list(range(5000, 5000 + 3 * BLOCK_SIZE))
        self._answer(client.post(self.engine.url + self.path, body))

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"] or "text/plain")
        self.send_header("content-length", str(len(answer.raw)))
        self.end_headers()
        self.wfile.write(answer.raw)

    def log_message(self, *_: object) -> None:
        pass


class Instead(RealEngine):
    """What stands at another port in front of an engine, with its name and URL."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self._port}"


@pytest.fixture
def computes_another(nixl_engines: Pair) -> Iterator[RealEngine]:
    handler = type("Handler", (ComputesAnother,), {"engine": nixl_engines[0]})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield Instead(server.server_port)
        server.shutdown()
        thread.join()


def test_a_reference_of_another_prompt_is_not_used(
    nixl_engines: Pair, computes_another: RealEngine, new_log: Callable[[str], Path]
) -> None:
    decode = nixl_engines[1]
    before = fetched(decode)

    with serve_in_two_legs(computes_another, decode, new_log("gateway-another")) as gateway:
        answer = client.post(gateway.url + COMPLETION, completion("not another's"))
        refused = counted(gateway.url, "prefill", "malformed")  # of another number of tokens

    assert refused == 1
    assert answer.headers["x-inferway-prefill-engine"] is None
    assert fetched(decode) == before
    assert of_completion(answer) == pytest.approx(computed_alone(decode, "not another's"), abs=1e-4)


def test_a_reference_whose_lease_is_nearly_over_is_not_used(
    nixl_engines: Pair, tmp_path: Path, new_log: Callable[[str], Path]
) -> None:
    decode = nixl_engines[1]
    settings = tmp_path / "gateway.yaml"
    settings.write_text(f"kv_transfer: {{lease_margin_seconds: {LEASE_SECONDS}}}\n")
    before = fetched(decode)

    log = new_log("gateway-short-lease")
    with serve_in_two_legs(*nixl_engines, log, "--config", str(settings)) as gateway:
        answer = client.post(gateway.url + COMPLETION, completion("late"))
        late = counted(gateway.url, "prefill", "lease")

    assert late == 1
    assert answer.headers["x-inferway-prefill-engine"] is None
    assert fetched(decode) == before
    assert of_completion(answer) == pytest.approx(computed_alone(decode, "late"), abs=1e-4)


def test_openais_client_streams_what_it_gets_from_one_engine(
    nixl_engines: Pair, two_legs: str
) -> None:
    texts = []
    before = counted(two_legs, "decode", "ok")
    for url in (two_legs, nixl_engines[0].url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as people:
            stream = people.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": text(230)}],
                max_tokens=ANSWER_TOKENS,
                temperature=0,
                stream=True,
            )
            texts.append([chunk.choices[0].delta.content or "" for chunk in stream])

    assert "".join(texts[0]) == "".join(texts[1]) != ""
    assert counted(two_legs, "decode", "ok") == before + 1


def test_anthropics_client_gets_what_it_gets_from_one_engine(
    nixl_engines: Pair, two_legs: str
) -> None:
    found = []
    before = counted(two_legs, "decode", "ok")
    for url in (two_legs, nixl_engines[0].url):
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as people:
            answer = people.messages.create(
                model=MODEL,
                messages=[{"role": "user", "content": text(231)}],
                max_tokens=ANSWER_TOKENS,
                extra_body={"temperature": 0},  # its own parameter is gone
            )
            found.append([block.to_dict() for block in answer.content])

    assert found[0] == found[1] != []
    assert counted(two_legs, "decode", "ok") == before + 1


def test_what_is_kept_for_a_client_that_has_gone_is_free_when_the_lease_ends(
    nixl_engines: Pair, two_legs: str
) -> None:
    prefill, decode = nixl_engines
    done = counted(two_legs, "prefill", "ok")
    gone = counted(two_legs, "decode", "client_gone")
    ended = metric(prefill, ENDED_LEASES)
    with decode.core_stopped():
        with closing(HTTPConnection(two_legs.removeprefix("http://"))) as connection:
            body = json.dumps(completion("gone")).encode()
            connection.request("POST", COMPLETION, body, {"content-type": "application/json"})
            wait_until(lambda: counted(two_legs, "prefill", "ok") > done, "leg 1 is over")
        wait_until(lambda: counted(two_legs, "decode", "client_gone") > gone, "leg 2 is aborted")
        wait_until(lambda: metric(prefill, ENDED_LEASES) > ended, "the lease ends")

    wait_until(
        lambda: all(metric(engine, KV_USAGE) == 0 for engine in nixl_engines), "the blocks are free"
    )


def test_a_drained_engine_hands_its_sessions_to_the_other_one(
    nixl_engines: Pair, new_log: Callable[[str], Path]
) -> None:
    first = as_chat(240)
    with serve(nixl_engines, new_log("gateway-drain")) as gateway:
        wait_until_known_to_hand_over(gateway.url)
        answer = send(gateway.url, first)
        drained, blocks = engine_of(answer), cached(answer).prompt_blocks
        wait_until_believed(gateway.url, first, drained, blocks)

        client.post(f"{gateway.url}/admin/engines/{drained}/drain?seconds=60", {})
        wait_until(lambda: handed_over(gateway.url, drained) == "done", "it has handed over")
        said = [*first.body["messages"], assistant(text_of(CHAT, answer)), user("And then?")]
        turn = send(gateway.url, chat("the next turn", said))

    [other] = [engine.name for engine in nixl_engines if engine.name != drained]
    assert engine_of(turn) == other
    assert cached(turn).blocks == blocks > 0


def handed_over(gateway: str, drained: str) -> str:
    """How its hand-over stands."""
    told = client.get(f"{gateway}/admin/engines").json["engines"]
    [state] = [engine["hand_over"]["state"] for engine in told if engine["name"] == drained]
    return str(state)
