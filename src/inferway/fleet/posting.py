"""POST to an engine: what it answered, or why there is no answer."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from yarl import URL

from inferway.errors import UpstreamError, UpstreamTimeoutError

_JSON = {"content-type": "application/json"}


async def post(
    session: aiohttp.ClientSession,
    engine_url: str,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    seconds: float,
) -> tuple[int, bytes]:
    """Status and body of the answer to some JSON. Raises UpstreamTimeoutError for none within
    `seconds`, UpstreamError for no connection."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with session.post(
            URL(engine_url + path, encoded=True),
            data=body,
            headers={**headers, **_JSON},
            timeout=timeout,
        ) as response:
            return response.status, await response.read()
    except TimeoutError as e:
        raise UpstreamTimeoutError(f"{path} did not answer within {seconds:g} s") from e
    except (aiohttp.ClientError, OSError) as e:
        raise UpstreamError(f"{path}: {str(e) or type(e).__name__}") from e
