"""Envoy, a picker, and engines, all in reach of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import pytest
from tests.envoy.proxy import Change, Config, Envoy
from tests.envoy.upstreams import Behave, Upstream, digest
from tests.llmd.ext_proc.pods import Stream, UndelayedTap

from inferway.extension import Extension
from inferway.telemetry.tracing import Tracing
from inferway_llmd.ext_proc.health import Health
from inferway_llmd.ext_proc.questions import Rules
from inferway_llmd.ext_proc.server import PickerServer

COMPLETION = b'{"model":"m","prompt":"hello"}'


@dataclass
class Proxied:
    """What a client reaches through Envoy."""

    envoy: Envoy
    picker: PickerServer
    stream: Stream  # the picker's parts; its own exchange is not used
    upstreams: list[Upstream]
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.envoy.url

    @property
    def booked(self) -> list[str]:
        return self.stream.fleet.booked

    @property
    def outcomes(self) -> dict[str, int]:
        return self.stream.outcomes


StartProxied = Callable[..., Awaitable[Proxied]]


@pytest.fixture
async def start() -> AsyncIterator[StartProxied]:
    async with AsyncExitStack() as stack:

        async def started(
            *behave: Behave,
            change: Change = lambda _: None,
            credentials: grpc.ServerCredentials | None = None,
            rewrites: Any = None,
            dead: int = 0,
            pods: Mapping[str, Mapping[str, Any]] | None = None,
            extensions: Sequence[Extension] = (),
            tracing: Tracing | None = None,
            **rules: Any,
        ) -> Proxied:
            upstreams = [
                await stack.enter_async_context(Upstream(each)) for each in behave or (digest,)
            ]
            # the dead ones have the least to do, so they are picked first
            known = {f"127.0.0.1:{port}": {"q": 0} for port in range(1, 1 + dead)}
            known |= {upstream.address: {"q": 1 + i} for i, upstream in enumerate(upstreams)}
            known |= {address: dict(pod) for address, pod in (pods or {}).items()}
            stream = Stream(known, rewrites=rewrites)
            picker = PickerServer(
                stream.picker,
                Rules(
                    stream.fleet.find,
                    tap=UndelayedTap([stream.picker.requests, *extensions]),
                    **rules,
                ),
                Health(lambda: True),
                host="127.0.0.1",
                port=0,
                health_port=None,
                credentials=credentials,
                health_beside=True,
                tracing=tracing,
            )
            await picker.start()
            stack.push_async_callback(picker.stop, 0)

            def changed(config: Config) -> None:
                config["test_addresses"] = list(known)  # for a change that lists them
                change(config)
                config.pop("test_addresses", None)

            envoy = await stack.enter_async_context(Envoy(picker.port, changed))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return Proxied(envoy, picker, stream, upstreams, http)

        yield started
