"""An endpoint picker of several processes is one picker to its proxy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
from tests.cluster.serving import MODEL, simulated
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until
from tests.llmd.ext_proc.pods import rqb, rqh, rsb, rsh

from inferway_llmd.ext_proc.messages import (
    METHOD,
    SERVICE,
    ProcessingRequest,
    ProcessingResponse,
)

ASKED = 24
BODY = json.dumps({"model": MODEL, "prompt": "The quick brown fox " * 20, "max_tokens": 4}).encode()
ANSWER = b'{"usage":{"prompt_tokens":81,"completion_tokens":4,"total_tokens":85}}'
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def test_workers_pick_for_a_proxy_on_one_port_by_what_the_hub_hears(tmp_path: Path) -> None:
    words = [
        *("epp", "--host", "127.0.0.1", "--workers", "2", "--secure-serving=false"),
        *("--policy", "kv-aware", "--scrape-seconds", "0.05"),
        *("--grpc-port", "0", "--grpc-health-port", "0"),
    ]
    with simulated() as other, simulated() as holder:
        assert client.post(f"{holder.url}/v1/completions", json.loads(BODY)).status == 200
        engines = [word for each in (other, holder) for word in ("--engine", each.url)]
        with Program([*words, *engines], tmp_path / "epp.log") as picker:

            def page() -> str:
                return client.get(f"{picker.url}/metrics").raw.decode()

            blocks = r"^inferway_index_blocks\{.*\} [1-9]"
            wait_until(lambda: re.search(blocks, page(), re.M), "its blocks are known", page)
            told = re.findall(r"for a proxy at (127\.0\.0\.1:\d+)", picker.log_text())
            assert len(told) == 2  # each worker says so
            [address] = {*told}

            assert {picked(address) for _ in range(ASKED)} == {holder.url.removeprefix("http://")}

            def counted() -> bool:
                found = re.findall(
                    r'^inferway_requests_total\{.*outcome="ok".*\} (\S+)$', page(), re.M
                )
                return sum(map(float, found)) == ASKED

            wait_until(counted, "all are counted")
            assert picker.stop() == 0


def picked(address: str) -> str:
    """The engine that a proxy is told, over a connection of its own."""
    with grpc.insecure_channel(address, OWN_CONNECTION) as channel:
        process = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        exchange = [
            rqh((":method", "POST"), (":path", "/v1/completions")),
            rqb(BODY, eos=True),
            rsh((":status", "200"), ("content-type", "application/json")),
            rsb(ANSWER, eos=True),
        ]
        answers = list(process(iter(exchange)))
    mutated = answers[0].request_headers.response.header_mutation.set_headers
    headers = {option.header.key: option.header.raw_value.decode() for option in mutated}
    return str(headers["x-gateway-destination-endpoint"])
