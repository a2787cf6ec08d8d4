"""The same as echo.py, over the gRPC that our picker has: what of its cost is no picker's.

`python -m inferway_bench.epp.bare PORT ADDRESS` serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from inferway.frontends.ext_proc import answers
from inferway.frontends.ext_proc.messages import METHOD, SERVICE, ProcessingRequest
from inferway.frontends.ext_proc.wire.call import Call
from inferway.frontends.ext_proc.wire.listening import GrpcServer


class Bare:
    """One stream; the request goes to `address`."""

    def __init__(self, call: Call, address: str) -> None:
        self._call = call
        self._address = address
        self._body: list[bytes] = []

    def on_message(self, message: bytes) -> None:
        read, call = ProcessingRequest.FromString(message), self._call
        kind = read.WhichOneof("kind")
        if kind == "request_body":
            self._body.append(read.request_body.body)
            if read.request_body.end_of_stream:
                whole = b"".join(self._body)
                call.send(answers.request_headers(self._address, (), (), len(whole)))
                for piece in answers.request_pieces(whole, ended=True):
                    call.send(piece)
        elif kind == "response_headers":
            call.send(answers.response_headers(()))
        elif kind == "response_body":
            came = read.response_body
            call.send(answers.response_piece(came.body, ended=came.end_of_stream))

    def on_end(self) -> None:
        self._call.finish()

    def on_gone(self) -> None: ...


async def _serve(port: int, address: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    method = f"/{SERVICE}/{METHOD}".encode()
    server = GrpcServer({method: lambda call: Bare(call, address)}, host="127.0.0.1", port=port)
    await server.start()
    print("listening on", server.port, flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
