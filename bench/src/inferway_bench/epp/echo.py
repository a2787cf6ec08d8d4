"""A bare picker: one address for everybody, and everything is passed on. What gRPC costs in Python.

`python -m inferway_bench.epp.echo PORT ADDRESS` serves until SIGTERM.
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

from inferway.frontends.ext_proc import answers
from inferway.frontends.ext_proc.messages import METHOD, SERVICE, ProcessingRequest


class Echo:
    """Every request goes to `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def process(self, messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        """One stream. Answers in the order that the protocol wants: headers, then the body."""
        body: list[bytes] = []
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "request_body":
                body.append(message.request_body.body)
                if message.request_body.end_of_stream:
                    whole = b"".join(body)
                    yield answers.request_headers(self._address, (), (), len(whole))
                    for piece in answers.request_pieces(whole, ended=True):
                        yield piece
            elif kind == "response_headers":
                yield answers.response_headers(())
            elif kind == "response_body":
                came = message.response_body
                yield answers.response_piece(came.body, ended=came.end_of_stream)


async def _serve(port: int, address: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    process = grpc.stream_stream_rpc_method_handler(
        Echo(address).process, ProcessingRequest.FromString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: process})]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print("listening on", port, flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
