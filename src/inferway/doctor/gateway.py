"""Asks a running gateway for its alarms, and what of its traffic keeps caches from being used."""

from __future__ import annotations

import re
from collections.abc import Mapping

import aiohttp
import msgspec

from inferway.doctor.facts import BreakersReport, EventsReport, GatewayReport, TrafficReport
from inferway.errors import UpstreamError
from inferway.fleet.http_client import StatusError, fetch
from inferway.model import Alarm

_SECONDS = 5.0
_PATH = "/admin/traffic"
_BREAKERS = "/admin/cache-breakers"
_ENGINES = "/admin/engines"
_ALARMS = "/admin/alarms"
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
    headers = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            said = await fetch(session, url + _PATH, headers)
            traffic = msgspec.json.decode(said, type=TrafficReport)
            legs = await _prefill_legs(session, url, headers)
            breakers = await _breakers(session, url, headers)
            events = await _events(session, url, headers)
            alarms = await _alarms(session, url, headers)
            return GatewayReport(url, traffic, legs, None, breakers, events, alarms)
        except StatusError as e:
            return GatewayReport(url, error=f"{e}; {_CURES.get(e.answered, 'its log may say why')}")
        except UpstreamError as e:
            return GatewayReport(url, error=str(e))
        except (msgspec.DecodeError, ValueError) as e:
            return GatewayReport(url, error=f"{url}{_PATH}: no answer of a gateway: {e}")


async def _breakers(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> BreakersReport | None:
    """Return what breaks caches there; None of a gateway that does not look for it."""
    try:
        return msgspec.json.decode(
            await fetch(session, url + _BREAKERS, headers), type=BreakersReport
        )
    except UpstreamError:
        return None


class _Alarms(msgspec.Struct):
    alarms: list[Alarm]


async def _alarms(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> list[Alarm] | None:
    """Return the alarms of its page; None of a gateway that does not tell them."""
    try:
        return msgspec.json.decode(
            await fetch(session, url + _ALARMS, headers), type=_Alarms
        ).alarms
    except UpstreamError:
        return None


class _FollowedEngines(msgspec.Struct):
    kv_events: EventsReport = EventsReport()  # which older gateways follow always


async def _events(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> EventsReport:
    try:
        told = msgspec.json.decode(
            await fetch(session, url + _ENGINES, headers), type=_FollowedEngines
        )
        return told.kv_events
    except UpstreamError:
        return EventsReport()


async def _prefill_legs(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> Mapping[tuple[str, str], int]:
    """Return how many prompts each engine was to compute for another, by outcome; none if it does
    not count them."""
    try:
        page = await fetch(session, f"{url}/metrics", headers)
    except UpstreamError:
        return {}
    found = _PREFILL_LEGS.findall(page.decode(errors="replace"))
    return {(engine, outcome): int(float(number)) for engine, outcome, number in found}
