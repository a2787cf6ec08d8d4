"""deploy/standalone in a real Envoy: it starts, takes requests, and the picker answers."""

from __future__ import annotations

import aiohttp
import pytest
from tests.envoy.proxy import STANDALONE, Envoy
from tests.llmd.ext_proc.test_server import Running

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("name", sorted(path.name for path in STANDALONE.glob("*.yaml")))
async def test_a_shipped_file_starts_and_asks_the_picker(name: str) -> None:
    async with Running() as picker, Envoy(picker.server.port, name=name) as envoy:
        body = b'{"model": 1}'
        async with (
            aiohttp.ClientSession() as http,
            http.post(envoy.url + "/v1/completions", data=body) as response,
        ):
            answer = await response.text()

    assert response.status == 400
    assert answer.startswith("inference error: BadRequest - ")
    assert picker.server.counts.refusals == {400: 1}
