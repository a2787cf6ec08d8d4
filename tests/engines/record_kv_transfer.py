"""Writes tests/data/kv_transfer anew: what real engines with NIXL answer to the legs of a request,
and what they tell of themselves (tests/data/README.md).

INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.record_kv_transfer
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines import client
from tests.engines.engine import MODEL, free_ports, wait_until_ready
from tests.engines.nixl import ASKS_FOR_REFERENCE, DECODE, PREFILL, NixlEngine
from tests.engines.small_model import first_layers
from tests.engines.waiting import wait_until

from inferway_sim.prepare import prepare_smollm2

FOLDER = Path(__file__).parents[1] / "data" / "kv_transfer"

Json = dict[str, Any]

WORDS = ["river", "stone", "cloud", "table", "garden", "window", "music", "paper", "bread", "clock"]
ANSWER_TOKENS = 6
PATIENCE_SECONDS = 60
TOLD_OF_TRANSFER = ("nixl", "by_source", "kv_fetch", "external_prefix_cache", "kv_cache_usage")


def text(number: int) -> str:
    """About 100 tokens that no other number begins with."""
    return f"{number}: " + " ".join(Random(number).choices(WORDS, k=100))


def bodies(number: int, max_tokens: int) -> dict[str, Json]:
    """One request for each path, without the parameters of a transfer."""
    said = [{"role": "user", "content": text(number)}]
    common = {"model": MODEL, "temperature": 0}
    return {
        "/v1/chat/completions": {**common, "messages": said, "max_tokens": max_tokens},
        "/v1/completions": {**common, "prompt": text(number), "max_tokens": max_tokens},
        "/v1/responses": {**common, "input": text(number), "max_output_tokens": max_tokens},
        "/v1/messages": {**common, "messages": said, "max_tokens": max_tokens},
    }


class Recorder:
    """What was asked and answered, in order."""

    def __init__(self, engines: Mapping[str, NixlEngine]) -> None:
        self.cases: list[Json] = []
        self._engines = engines

    def ask(self, name: str, engine: str, path: str, body: Mapping[str, object]) -> Json:
        """The answer: its status and what came, as JSON or, of a stream, as text; whether the
        connection broke before its end; and whether nothing came at all."""
        url = self._engines[engine].url + path
        case: Json
        try:
            answer = client.post(url, body, seconds=PATIENCE_SECONDS)
        except TimeoutError:
            case = {"status": None, "answer": None, "silent": True}
        except IncompleteRead as e:
            case = {"status": 200, "answer": e.partial.decode(), "broken": True}
        else:
            is_json = answer.headers.get_content_type() == "application/json"
            case = {
                "status": answer.status,
                "answer": answer.json if is_json else answer.raw.decode(),
            }
        self.cases.append({"name": name, "engine": engine, "path": path, "body": body, **case})
        write("legs.jsonl", "".join(f"{json.dumps(case)}\n" for case in self.cases))
        print(f"{name}: {engine} {path}")
        return case

    def reference(self, path: str, number: int) -> Json:
        """Of the prompt with this number, from a prefill leg that is not recorded."""
        body = {**bodies(number, 1)[path], "kv_transfer_params": ASKS_FOR_REFERENCE}
        answer = client.post(self._engines["prefill"].url + path, body)
        found: Json = answer.json["kv_transfer_params"]
        return found


def record_prefill_legs(recorder: Recorder) -> None:
    asked = {"kv_transfer_params": ASKS_FOR_REFERENCE}
    for number, (path, body) in enumerate(bodies(1, 1).items()):
        whole = {**body, **asked}
        recorder.ask("prefill leg", "prefill", path, whole)
        recorder.ask("prefill leg, the prompt cached", "prefill", path, whole)
        stream = {**bodies(10 + number, 1)[path], **asked, "stream": True}
        recorder.ask("prefill leg, streamed", "prefill", path, stream)
    for path in ("/v1/chat/completions", "/v1/completions"):
        several = {**bodies(20, 1)[path], **asked, "n": 2, "temperature": 1.0}
        recorder.ask("prefill leg, n of 2", "prefill", path, several)
    short = {"model": MODEL, "prompt": [100, 200], "max_tokens": 1, **asked}
    recorder.ask("prefill leg, shorter than a block", "prefill", "/v1/completions", short)
    prompts = {**short, "prompt": [text(21), text(22)]}
    recorder.ask("prefill leg, two prompts", "prefill", "/v1/completions", prompts)
    with_ids = {**bodies(23, 1)["/v1/chat/completions"], **asked, "return_token_ids": True}
    recorder.ask("prefill leg, ids wanted", "prefill", "/v1/chat/completions", with_ids)
    long = {**short, "prompt": [100] * 5000}
    recorder.ask("prefill leg, too long", "prefill", "/v1/completions", long)
    record_aborted(recorder)


def record_aborted(recorder: Recorder) -> None:
    """By /pause, as a client that has gone away sees no answer."""
    engine = recorder._engines["prefill"]
    body = bodies(24, 3000)["/v1/chat/completions"]
    body |= {"ignore_eos": True, "kv_transfer_params": ASKS_FOR_REFERENCE}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(
            recorder.ask, "prefill leg, aborted", "prefill", "/v1/chat/completions", body
        )
        wait_until(lambda: b'num_requests_running{engine="0"' in metrics(engine), "metrics")
        wait_until(lambda: running(engine) == 1, "it runs")
        print(client.post(f"{engine.url}/pause?mode=abort", {}).raw)
        asking.result()
    print(client.post(f"{engine.url}/resume", {}).raw)


def record_decode_legs(recorder: Recorder, engine: str) -> None:
    number = 30
    for path in bodies(0, 1):
        for name, more in (("decode leg", {}), ("decode leg, streamed", {"stream": True})):
            number += 1
            body = {**bodies(number, ANSWER_TOKENS)[path], **more}
            params = {"kv_transfer_params": recorder.reference(path, number)}
            recorder.ask(name, engine, path, {**body, **params})
            recorder.ask("the same without a transfer", "prefill", path, body)
    path = "/v1/chat/completions"
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    body = {**bodies(40, ANSWER_TOKENS)[path], **usage}
    params = {"kv_transfer_params": recorder.reference(path, 40)}
    recorder.ask("decode leg, streamed with usage", engine, path, {**body, **params})
    again = {"kv_transfer_params": recorder.reference(path, 40)}
    recorder.ask("decode leg, the prompt cached on both", engine, path, {**body, **again})
    used = {"kv_transfer_params": recorder.reference(path, 41), "logprobs": True}
    body = {**bodies(41, ANSWER_TOKENS)[path], **used}
    recorder.ask("decode leg, first use of a reference", engine, path, body)
    other = {**bodies(42, ANSWER_TOKENS)[path], "logprobs": True, "cache_salt": "other"}
    recorder.ask("a used reference, another prompt: wrong", engine, path, {**other, **used})
    recorder.ask("the other prompt's right answer", engine, path, {**other, "cache_salt": "right"})
    recorder.ask("the other prompt later: wrong blocks are kept", engine, path, other)


def broken(reference: Json) -> Iterator[tuple[str, Json]]:
    nobody = free_ports(1)[0]
    yield "nobody at the port", {**reference, "remote_port": nobody, "remote_engine_id": "1"}
    yield "another engine id", {**reference, "remote_engine_id": "00000000-0000"}
    wild = [[10**6 + i for i in range(len(reference["remote_block_ids"][0]))]]
    yield "blocks that are not there", {**reference, "remote_block_ids": wild}


def record_failed_loads(recorder: Recorder, engine: str) -> None:
    path = "/v1/chat/completions"
    for number, kind in enumerate(dict(broken({"remote_block_ids": [[]]}))):
        for name, more in (("", {}), (", streamed", {"stream": True})):
            num = 50 + 2 * number + bool(more)
            params = dict(broken(recorder.reference(path, num)))[kind]
            body = {**bodies(num, ANSWER_TOKENS)[path], **more, "kv_transfer_params": params}
            recorder.ask(f"{kind}{name}", engine, path, body)
    for number, path in enumerate(list(bodies(0, 1))[1:]):
        for name, more in (("", {}), (", streamed", {"stream": True})):
            num = 70 + 2 * number + bool(more)
            params = dict(broken(recorder.reference(path, num)))["another engine id"]
            body = {**bodies(num, ANSWER_TOKENS)[path], **more, "kv_transfer_params": params}
            recorder.ask(f"another engine id{name}", engine, path, body)


def record_incomplete(recorder: Recorder, engine: str) -> None:
    """A reference without one of its fields. Last the one that kills the engine's core."""
    path = "/v1/chat/completions"
    fields = ("tp_size", "remote_num_tokens", "remote_engine_id")
    for number, field in enumerate(fields):
        params = recorder.reference(path, 80 + number)
        del params[field]
        body = {**bodies(80 + number, ANSWER_TOKENS)[path], "kv_transfer_params": params}
        recorder.ask(f"a reference without {field}", engine, path, body)
    own = {**bodies(90, ANSWER_TOKENS)[path], "kv_transfer_params": recorder.reference(path, 90)}
    recorder.ask("its own reference", "prefill", path, own)
    alone = {**bodies(91, ANSWER_TOKENS)[path], "kv_transfer_params": {"do_remote_prefill": True}}
    recorder.ask("do_remote_prefill alone: its core dies", engine, path, alone)


def metrics(engine: NixlEngine) -> bytes:
    return client.get(f"{engine.url}/metrics").raw


def running(engine: NixlEngine) -> float:
    [line] = [
        x
        for x in metrics(engine).decode().splitlines()
        if x.startswith("vllm:num_requests_running{")
    ]
    return float(line.rpartition(" ")[2])


def told_of_transfer(engine: NixlEngine) -> str:
    """The families of /metrics that concern transfers, without buckets and dates."""
    lines = metrics(engine).decode().splitlines()
    told = [line for line in lines if any(word in line for word in TOLD_OF_TRANSFER)]
    return "".join(
        f"{line}\n" for line in told if "_bucket{" not in line and "_created" not in line
    )


def server_info(engine: NixlEngine) -> Json:
    """/server_info without the machine's environment, and of vLLM's variables NIXL's alone."""
    told = client.get(f"{engine.url}/server_info?config_format=json").json
    environment = {key: value for key, value in told["vllm_env"].items() if "NIXL" in key}
    return {"vllm_config": told["vllm_config"], "vllm_env": environment}


def write(name: str, value: object) -> None:
    packed = value if isinstance(value, str) else json.dumps(value, indent=1) + "\n"
    (FOLDER / name).write_text(packed, encoding="utf-8")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    vllm = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "vllm"
    with TemporaryDirectory() as name:
        directory = Path(name)
        model = first_layers(prepare_smollm2(weights=True), directory / "model")
        made = {
            "prefill": NixlEngine(vllm, model, directory / "p.log", PREFILL),
            "decode": NixlEngine(vllm, model, directory / "d.log", DECODE),
            "decode-fail": NixlEngine(
                vllm, model, directory / "f.log", DECODE, on_failed_load="fail"
            ),
        }
        try:
            for engine in made.values():
                engine.start()
            wait_until_ready(list(made.values()), print)
            for engine in made.values():
                engine.use_all_cores()
            record(made)
        finally:
            for engine in made.values():
                engine.kill()


def record(engines: Mapping[str, NixlEngine]) -> None:
    for name in ("prefill", "decode"):
        engine = engines[name]
        write(f"server_info.{name}.json", server_info(engine))
        write(f"kv_event_sources.{name}.json", client.get(f"{engine.url}/kv_event_sources").json)
        write(f"metrics_before.{name}.txt", told_of_transfer(engine))
    recorder = Recorder(engines)
    record_prefill_legs(recorder)
    record_decode_legs(recorder, "decode")
    for name in ("prefill", "decode"):
        write(f"metrics_after.{name}.txt", told_of_transfer(engines[name]))
    record_failed_loads(recorder, "decode-fail")
    record_failed_loads(recorder, "decode")
    write("metrics_failed.decode.txt", told_of_transfer(engines["decode"]))
    record_incomplete(recorder, "decode-fail")


if __name__ == "__main__":
    main()
