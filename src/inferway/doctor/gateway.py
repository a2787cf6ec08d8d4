"""Asks a running gateway for its alarms, and what of its traffic keeps caches from being used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.doctor.facts import BreakersReport, EventsReport, GatewayReport, TrafficReport
from inferway.errors import ConfigError, UpstreamError
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.model import Alarm, Headers

_SECONDS = 5.0
_PATH = "/admin/traffic"
_PREFILL_LEGS = re.compile(
    r'^inferway_prefill_legs_total\{engine="([^"\n]+)",outcome="([\w-]+)"\}'
    r" ([\d.]+(?:e\+\d+)?)$",
    re.M,
)
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
    headers = [] if admin_key is None else [(b"authorization", f"Bearer {admin_key}".encode())]
    client = EngineClient(seconds=_SECONDS)

    async def told(path: str, kind: Any, otherwise: Any = None) -> Any:
        """Return its answer, or `otherwise` of a gateway that does not have the page."""
        try:
            return msgspec.json.decode(await client.get(url, path, headers), type=kind)
        except UpstreamError:
            return otherwise

    try:
        traffic = msgspec.json.decode(await client.get(url, _PATH, headers), type=TrafficReport)
        return GatewayReport(
            url,
            traffic,
            await _prefill_legs(client, url, headers),
            breakers=await told("/admin/cache-breakers", BreakersReport),
            events=(await told("/admin/engines", _FollowedEngines, _FollowedEngines())).kv_events,
            alarms=(await told("/admin/alarms", _Alarms, _Alarms())).alarms,
        )
    except StatusError as e:
        return GatewayReport(url, error=f"{e}; {_CURES.get(e.answered, 'its log may say why')}")
    except UpstreamError as e:
        return GatewayReport(url, error=str(e))
    except ConfigError:
        return GatewayReport(url, error=f"{url!r}: expected http://HOST:PORT or https://HOST:PORT")
    except (msgspec.DecodeError, ValueError) as e:
        return GatewayReport(url, error=f"{url}{_PATH}: no answer of a gateway: {e}")
    finally:
        await client.close()


class _Alarms(msgspec.Struct):
    alarms: list[Alarm] | None = None  # of its page


class _FollowedEngines(msgspec.Struct):
    kv_events: EventsReport = EventsReport()  # which older gateways follow always


async def _prefill_legs(
    client: EngineClient, url: str, headers: Headers
) -> Mapping[tuple[str, str], int]:
    """Return how many prompts each engine was to compute for another, by outcome; none if it does
    not count them."""
    try:
        page = await client.get(url, "/metrics", headers)
    except UpstreamError:
        return {}
    found = _PREFILL_LEGS.findall(page.decode(errors="replace"))
    return {(engine, outcome): int(float(number)) for engine, outcome, number in found}
