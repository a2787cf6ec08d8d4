"""Seed 003's eight success criteria, on the demo as a user runs it: a process, curl's requests,
Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from tests.fork_server import INFERWAY

SEED_MODEL = "ibm-granite/granite-3.3-2b-instruct"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


class RunningDemo:
    """`inferway demo` with its output collected up to a line."""

    def __init__(self, **environ: str) -> None:
        environment = {**os.environ, "HTTP_PORT": "0", "COLUMNS": "200", **environ}
        self.process = subprocess.Popen(
            [str(INFERWAY), "demo"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.output = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"the demo ended without {text!r}:\n{self.output}")

    def read_to_the_end(self) -> int:
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(timeout=30)

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.output)
        assert match is not None, self.output
        return match[1]

    def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        port = self.found(r"HTTP endpoints exposed port=(\d+)")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)


@pytest.fixture
def demo() -> Iterator[RunningDemo]:
    running = RunningDemo()
    yield running
    running.process.kill()
    running.process.communicate()


def test_the_seeds_eight_success_criteria(demo: RunningDemo) -> None:
    demo.read_until("Press Ctrl+C to stop the server")

    # 1, 2: the template wrapper and the indexer start
    assert "Chat template wrapper initialized successfully" in demo.output
    assert "Created Indexer" in demo.output
    # 3: all three phases run
    for phase in ("initialization", "prompt scoring", "chat completions", "live server"):
        assert phase in demo.output
    assert "4 prompts scored successfully" in demo.output
    # 5: templates are rendered, and shown
    assert "template fetched and rendered successfully" in demo.output
    assert "<|im_start|>user" in demo.output
    # 6: scoring is real: what was 0 before is all blocks afterwards
    assert re.search(
        r"Hello, how.* (pod-\d) .* 0/(\d+) (?s:.*)scored successfully\n .*\b\1 holds \2\b",
        demo.output,
    )
    # 7: events are published
    assert re.search(r"\d+ events published, chats on kv\.chat\.HuggingFaceTB_SmolLM2", demo.output)

    # 4: the endpoints answer the seed's two curl commands in the seed's form
    status, scores = demo.post(
        "/score_completions", {"prompt": "Hello, how are you today?", "model": SEED_MODEL}
    )
    assert status == 200
    assert scores == {
        "pod_scores": {"pod-1": 0, "pod-2": 0, "pod-3": 0},
        "model": SMOLLM2,
        "prompt": "Hello, how are you today?",
    }
    status, answer = demo.post("/v1/chat/completions", SEED_CHAT)
    assert status == 200
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", SMOLLM2)
    choice = answer["choices"][0]
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith(
        "Based on the rendered template and KV-cache analysis"
    )
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    # 8: Ctrl-C stops everything, says so, and is no error
    demo.process.send_signal(signal.SIGINT)
    assert demo.read_to_the_end() == 0
    for part in ("Received shutdown signal", "HTTP server stopped", "pod-1 stopped"):
        assert part in demo.output
    assert demo.output.rstrip().endswith("All components shut down successfully")


SEED_CHAT = {
    "model": SEED_MODEL,
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello! Can you help me understand KV-cache?"},
    ],
    "max_tokens": 100,
    "temperature": 0.7,
}


@pytest.mark.slow
def test_events_reach_a_subscriber_in_the_seeds_frames(demo: RunningDemo) -> None:
    demo.read_until("Press Ctrl+C to stop the server")
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.LINGER, 0)
        # the demo's own conversations, which go on meanwhile, are with another model
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv.chat.ibm")
        subscriber.setsockopt(zmq.RCVTIMEO, 200)
        subscriber.connect(demo.found(r"inferway tail (tcp://\S+)"))
        frames: list[bytes] = []
        for _ in range(100):  # until the subscription has reached the publisher
            demo.post("/v1/chat/completions", SEED_CHAT)
            try:
                frames = subscriber.recv_multipart()
                break
            except zmq.Again:
                continue
    topic, seq, payload = frames
    event = msgspec.msgpack.decode(payload)

    assert topic == b"kv.chat.ibm-granite_granite-3.3-2b-instruct"
    assert int.from_bytes(seq, "big") >= 1
    assert event["messages"] == SEED_CHAT["messages"]
    assert "<|im_start|>" in event["rendered_template"]
    assert {
        "id",
        "model",
        "timestamp",
        "prompt_hash",
        "prompt_tokens",
        "block_keys",
        "engine",
        "matched_blocks",
        "pod_scores",
        "processing_time_ms",
        "template_vars",
    } <= event.keys()


def run_demo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(INFERWAY), "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200", "HTTP_PORT": "0", **environ},
    )


@pytest.mark.slow
def test_a_block_size_of_256_still_scores() -> None:
    run = run_demo("--exit", BLOCK_SIZE="256")

    assert run.returncode == 0
    assert "block size 256" in run.stdout
    assert re.search(r"Tell me about .* pod-\d .* 1/1 ", run.stdout)


@pytest.mark.slow
def test_a_model_that_cannot_be_had_is_one_line_and_smollm2_takes_its_place() -> None:
    run = run_demo("--exit", MODEL_NAME="no-such-org/no-such-model")

    [line] = [line for line in run.stdout.splitlines() if line.startswith("MODEL_NAME=")]

    assert run.returncode == 0
    assert "no-such-org/no-such-model cannot be had" in line
    assert line.endswith(f"going on with {SMOLLM2}")


def test_an_occupied_port_is_named_together_with_the_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = run_demo("--exit", HTTP_PORT=str(port))

    assert run.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in run.stdout
    assert "HTTP_PORT" in run.stdout


@pytest.mark.parametrize("variable", ["HTTP_PORT", "BLOCK_SIZE"])
def test_a_bad_number_in_the_environment_is_named(variable: str) -> None:
    run = run_demo("--exit", **{variable: "many"})

    assert run.returncode == 2
    assert f"Invalid value for {variable}: 'many': expected a whole number from " in run.stdout


@pytest.fixture(scope="module")
def shown() -> str:
    """What a demo prints that ends after its phases."""
    run = run_demo("--exit")
    assert run.returncode == 0, run.stdout
    return run.stdout


def rows(output: str) -> list[tuple[str, list[int]]]:
    """Of each prompt, the engine, and the milliseconds in the three columns."""
    found = re.findall(r"(pod-\d) +[█░]{10} \d+/\d+ +(\d+) +(\d+) +(\d+)$", output, re.MULTILINE)
    return [(engine, [int(number) for number in numbers]) for engine, *numbers in found]


def test_every_prompt_has_a_line_of_80_characters_and_the_totals_are_their_sums(shown: str) -> None:
    lines, totals = rows(shown), re.search(r"all 10 prompts +(\d+) +(\d+) +(\d+)", shown)
    assert totals is not None
    sums = [sum(column) for column in zip(*(numbers for _, numbers in lines), strict=True)]
    assert len(lines) == 10
    assert all(
        abs(int(total) - each) <= 5 for total, each in zip(totals.groups(), sums, strict=True)
    )
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_more_tokens_come_from_caches_than_by_round_robin_and_none_without(shown: str) -> None:
    shares = re.search(r"tokens that were in the cache +(\d+)% +(\d+)% +(\d+)%", shown)
    assert shares is not None
    ours, by_turns, cold = map(int, shares.groups())
    assert ours > by_turns > cold == 0


def test_no_internals_and_no_python_are_shown(shown: str) -> None:
    assert not re.search(r"[{}]|pod_scores|INFO|Traceback", shown)
    assert "\x1b" not in shown


@pytest.mark.slow
def test_a_request_that_comes_while_the_demo_serves_leaves_a_line_without_its_prompt(
    demo: RunningDemo,
) -> None:
    demo.read_until("first token\n")  # the heads of the rows of phase 2
    demo.read_until("Press Ctrl+C to stop the server")
    demo.post("/v1/chat/completions", SEED_CHAT)
    demo.read_until("granite-3")

    line = demo.output.splitlines()[-1]
    assert re.search(
        r"^ \d\d:\d\d:\d\d ibm-granite/granite-3\S* +pod-\d  [█░]{10} \d+/\d+ +\d+ ms$", line
    )
    assert "understand" not in demo.output.partition("Press Ctrl+C")[2]


@pytest.mark.tools  # curl
def test_the_command_that_the_demo_offers_finds_all_blocks_the_second_time(
    demo: RunningDemo,
) -> None:
    demo.read_until("Press Ctrl+C to stop the server")
    command = demo.found(r"(?s)(curl -si .*?blocks:)\n")

    first, second = (
        subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )

    blocks = re.search(r"prompt-blocks: (\d+)", first)
    assert blocks is not None
    assert "matched-blocks: 0\n" in first.replace("\r", "")
    assert f"matched-blocks: {blocks[1]}\n" in second.replace("\r", "")
