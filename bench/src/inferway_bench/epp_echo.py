"""An endpoint picker that decides nothing, over `grpcio`: what gRPC costs in Python.

`python -m inferway_bench.epp_echo PORT ENGINE` serves ext_proc until SIGTERM, sends everything to
the engine and passes every message on.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import uvloop

from inferway.signals import listen
from inferway_llmd.ext_proc import answers
from inferway_llmd.ext_proc.messages import METHOD, SERVICE, ProcessingRequest


class EchoStream:
    """One stream of a picker that sends every request to `address` and passes everything on."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._body: list[bytes] = []

    def answers(self, message: Any) -> list[Any]:
        """Return what is said to a message, in the order of the protocol: headers, then the
        body."""
        kind = message.WhichOneof("kind")
        if kind == "request_body":
            self._body.append(message.request_body.body)
            if not message.request_body.end_of_stream:
                return []
            whole = b"".join(self._body)
            head = answers.request_headers(self._address, (), (), len(whole))
            return [head, *answers.request_pieces(whole, ended=True)]
        if kind == "response_headers":
            return [answers.response_headers(())]
        if kind == "response_body":
            came = message.response_body
            return [answers.response_piece(came.body, ended=came.end_of_stream)]
        return []


async def _serve(port: int, address: str) -> None:
    async def process(messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        stream = EchoStream(address)
        async for message in messages:
            for answer in stream.answers(message):
                yield answer

    stop = asyncio.Event()
    listen(asyncio.get_running_loop(), stop.set, signal.SIGTERM)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(process, ProcessingRequest.FromString)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("listening on", port, flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2].removeprefix("http://")))
