"""`inferway epp` and `inferway simulate` as processes: asked as Envoy asks, stopped by a signal."""

from __future__ import annotations

import json
import signal
import urllib.request

import grpc
from tests.integration.program import Start
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh
from tests.sim.in_a_thread import simulated

from inferway_llmd.ext_proc.health import SERVING, CheckRequest, CheckResponse
from inferway_llmd.ext_proc.messages import (
    METHOD,
    SERVICE,
    ProcessingRequest,
    ProcessingResponse,
)
from inferway_sim.engine import SimulatedEngine

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
BODY = json.dumps({"model": MODEL, "prompt": "The quick brown fox " * 20, "max_tokens": 4}).encode()
ANSWER = b'{"usage":{"prompt_tokens":81,"completion_tokens":4,"total_tokens":85}}'


def test_a_proxy_is_told_an_engine_and_the_pages_say_so(start: Start) -> None:
    engine = start("simulate", "--port", "0")
    address = engine.read_until(r"simulated engine http://(\S+)")
    picker = start(
        *("epp", "--engine", f"http://{address}", "--host", "127.0.0.1", "--zap-encoder", "json"),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        "--secure-serving=false",
    )
    port, health = picker.read_until(
        r"proxy at 127\.0\.0\.1:(\d+ \(in the clear\), with health checks on port \d+)"
    ).split(" (in the clear), with health checks on port ")
    url = picker.read_until(r"listening on (http://\S+)")

    with grpc.insecure_channel(f"127.0.0.1:{health}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", CheckRequest.SerializeToString, CheckResponse.FromString
        )
        assert check(CheckRequest(service="inference-extension")).status == SERVING
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        answers = list(
            process(
                iter(
                    [
                        rqh((":method", "POST"), (":path", "/v1/completions")),
                        rqb(BODY, eos=True),
                        rsh((":status", "200"), ("content-type", "application/json")),
                        rsb(ANSWER, eos=True),
                    ]
                )
            )
        )
    told = answers[0].request_headers.response.header_mutation.set_headers
    headers = {option.header.key: option.header.raw_value.decode() for option in told}
    with urllib.request.urlopen(url + "/metrics", timeout=30) as response:
        page = response.read().decode()
    for program in (picker, engine):
        program.process.send_signal(signal.SIGTERM)

    assert headers["x-gateway-destination-endpoint"] == address
    assert [answer.WhichOneof("kind") for answer in answers] == [
        *("request_headers", "request_body", "response_headers", "response_body")
    ]
    (requests,) = [line for line in page.splitlines() if line.startswith("inferway_requests_total")]
    assert 'outcome="ok"' in requests
    assert requests.endswith(" 1.0")
    assert f'inferway_prompt_tokens_total{{engine="{address}"}}' in page
    assert [program.ends() for program in (picker, engine)] == [0, 0]
    assert "--zap-encoder changes nothing: --log-format says" in picker.output
    (line,) = [each for each in picker.output.splitlines() if " method=POST " in each]
    assert "inferway.access: method=POST path=/v1/completions status=200 outcome=ok" in line
    assert f" engine={address} attempts=1 matched_blocks=0 prompt_blocks=" in line
    assert " prompt_tokens=81 output_tokens=4 bytes=" in line


def test_a_proxy_is_told_an_engine_that_a_prompt_fits(start: Start) -> None:
    with (
        simulated("--max-model-len", "128") as short,
        simulated("--max-model-len", "4096") as long,
    ):
        picked = picks_of(start, short, long)

    assert picked == {long.url.removeprefix("http://")}


def picks_of(start: Start, *engines: SimulatedEngine) -> set[str]:
    """Where a picker of these engines sends prompts of 200 to 400 tokens."""
    picker = start(
        *("epp", *(word for engine in engines for word in ("--engine", engine.url))),
        *("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0"),
        *("--metrics-port", "0", "--secure-serving=false"),
    )
    port = picker.read_until(r"proxy at 127\.0\.0\.1:(\d+)")
    picker.read_until(r"listening on (http://\S+)")
    bodies = [json.dumps({"model": MODEL, "prompt": f"{n} " * 200}).encode() for n in range(4)]

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        picked = set[str]()
        for body in bodies:
            head = rqh((":method", "POST"), (":path", "/v1/completions"))
            answer = next(iter(process(iter([head, rqb(body, eos=True)]))))
            told = answer.request_headers.response.header_mutation.set_headers
            headers = {option.header.key: option.header.raw_value.decode() for option in told}
            picked.add(headers["x-gateway-destination-endpoint"])

    return picked
