"""POST to an engine: what it answered, or why there is no answer.

Redirects are not followed, here and wherever an engine is asked: an engine must not choose whom the
gateway connects to.
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from yarl import URL

from inferway.errors import UpstreamError, UpstreamTimeoutError

MAX_ANSWER_BYTES = 64 * 1024 * 1024
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
            allow_redirects=False,
        ) as response:
            return response.status, await read_answer(response)
    except TimeoutError as e:
        raise UpstreamTimeoutError(f"{path} did not answer within {seconds:g} s") from e
    except (aiohttp.ClientError, OSError) as e:
        raise UpstreamError(f"{path}: {str(e) or type(e).__name__}") from e


async def read_answer(
    response: aiohttp.ClientResponse, limit: int = MAX_ANSWER_BYTES, *, cut: bool = False
) -> bytes:
    """Its body. One over `limit` bytes raises UpstreamError, or is not read on if it may be
    `cut`."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit and cut:
            break
        if size > limit:
            raise UpstreamError(
                f"{response.url.path}: its answer has more than {limit} bytes, and no engine's has;"
                " give the URL of an inference engine"
            )
    return b"".join(pieces)
