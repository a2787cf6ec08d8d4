"""Asks a running gateway what of its traffic keeps caches from being used."""

from __future__ import annotations

import aiohttp
import msgspec

from inferway.doctor.facts import GatewayReport, TrafficReport
from inferway.errors import UpstreamError
from inferway.fleet.http_client import StatusError, fetch

_SECONDS = 5.0
_PATH = "/admin/traffic"
_CURES = {
    401: "it wants the admin key: give --admin-key-env with the name of the variable that holds it",
    404: "give the URL of a gateway of this version, or of its admin port if it has one",
}
_CURES[403] = _CURES[401]


async def ask_gateway(url: str | None, admin_key: str | None = None) -> GatewayReport | None:
    """Return what the gateway says, or why it says nothing; None if none is given."""
    if url is None:
        return None
    url = url.rstrip("/")
    headers = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            said = await fetch(session, url + _PATH, headers)
            return GatewayReport(url, msgspec.json.decode(said, type=TrafficReport))
        except StatusError as e:
            return GatewayReport(url, error=f"{e}; {_CURES.get(e.answered, 'its log may say why')}")
        except UpstreamError as e:
            return GatewayReport(url, error=str(e))
        except (msgspec.DecodeError, ValueError) as e:
            return GatewayReport(url, error=f"{url}{_PATH}: no answer of a gateway: {e}")
