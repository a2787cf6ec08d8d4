"""The state of a running gateway's fleet: /ready, /admin/engines and /metrics, put together."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from inferway.model import Alarm
from inferway.routing.limits.suspension import Suspension

_SECONDS = 5.0
# From the best to the worst that can be believed of a cache.
_BELIEFS = ("exact", "partial", "repairing", "stale", "blind")
_TTFT = "inferway_time_to_first_token_seconds_bucket"

# (sample's name, its labels) -> value
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class CannotAskError(Exception):
    """The gateway cannot be asked; the message says why, and the cure."""


@dataclass(frozen=True, slots=True)
class TransferState:
    """The way in which an engine hands KV blocks to others."""

    connector: str
    role: str  # prefill, decode, both, none
    lease_seconds: float
    hands_to: list[str]  # names of engines


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of one engine as the gateway knows it. Shares are of prompt tokens; None means
    unknown."""

    name: str
    url: str
    state: str  # up, asleep, paused, scaling, draining, drained, ejected, half-open, down
    cache: str  # what is believed of its cache, of several ranks the worst; -: not followed
    in_flight: int
    running: int
    waiting: int
    kv_usage: float
    blocks: int
    prompt_tokens: int
    matched_share: float | None
    delivered_share: float | None
    event_age_seconds: float | None  # of several ranks the oldest
    problems: list[str]
    since_seconds: float | None = None  # for which it is in this state
    outage: str | None = None  # unreachable, silent, stalled, invalid; None: it answers
    kv_transfer: TransferState | None = None  # None: it is not known to hand KV blocks to others


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of one model. Quantiles are in seconds, over all measurements; None means
    unknown."""

    name: str
    routed_by: str
    requests: int | None
    ttft_p50: float | None
    ttft_p95: float | None


@dataclass(frozen=True, slots=True)
class FleetState:
    """A gateway's fleet at one moment."""

    url: str
    ready: bool
    why: str | None  # it is not ready
    requests: int  # that have ended, of all models
    engines: list[EngineState]
    models: list[ModelState]
    alarms: list[Alarm] = field(default_factory=list)  # those of the page


class GatewayClient:
    """A gateway that is asked. `url` is where its admin paths are."""

    def __init__(self, url: str, admin_key: str | None = None, ca: str | None = None) -> None:
        """Raises CannotAskError for what is no URL, or no file of certificates."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise CannotAskError(f"{url!r}: expected http://HOST:PORT")
        self.url = url.rstrip("/")
        self._headers = {} if admin_key is None else {"Authorization": f"Bearer {admin_key}"}
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as e:
            raise CannotAskError(f"--ca {ca!r}: {e}; expected a file of certificates") from e
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def ask(self) -> FleetState:
        """Ask the gateway and return the state of its fleet. Raises CannotAskError."""
        ready = self._object("/ready", may_refuse=True)
        admin = self._object("/admin/engines")
        alarms = self._object("/admin/alarms")
        _, page = self._get("/metrics")
        try:
            state = fleet_state(self.url, ready, admin, samples_of(page), now=time.time())
            return replace(state, alarms=msgspec.convert(alarms["alarms"], list[Alarm]))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise self._no_gateway("/admin/engines") from e

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at an admin path. Raises CannotAskError; of a path that is not
        there with what the gateway says of it."""
        try:
            return self._object(path, says_why=path.startswith("/admin/requests/"))
        except _RefusedError as e:
            raise CannotAskError(f"{self.url}: {e}") from None

    def post(self, path: str) -> dict[str, Any]:
        """Return the JSON object that an admin path answers when it is told to do something.
        Raises CannotAskError, with what the gateway says of what it does not take."""
        try:
            return self._object(path, says_why=True, method="POST")
        except _RefusedError as e:
            raise CannotAskError(f"{self.url}: {e}") from None

    def _object(
        self, path: str, *, may_refuse: bool = False, says_why: bool = False, method: str = "GET"
    ) -> dict[str, Any]:
        _, body = self._get(path, may_refuse=may_refuse, says_why=says_why, method=method)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._no_gateway(path)
        return found

    def _get(
        self, path: str, *, may_refuse: bool = False, says_why: bool = False, method: str = "GET"
    ) -> tuple[int, str]:
        url = self.url + path
        request = urllib.request.Request(url, headers=self._headers, method=method)
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return answer.status, answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as e:
            if may_refuse and e.code == 503:
                return e.code, e.read().decode("utf-8", "replace")
            if says_why and e.code in (400, 404, 409):
                raise _RefusedError(_said(e)) from None
            raise self._refused(path, e.code) from None
        except (OSError, ValueError) as e:
            why = getattr(e, "reason", None) or e
            words = getattr(why, "strerror", None) or str(why)
            raise CannotAskError(
                f"{self.url} cannot be asked: {words}; start a gateway there (inferway serve), or"
                " give the URL of one that runs"
            ) from e

    def _refused(self, path: str, status: int) -> CannotAskError:
        if status in (401, 403):
            return CannotAskError(
                f"{self.url}{path}: {status}, it wants the admin key; give --admin-key-env with the"
                " name of the environment variable that holds it"
            )
        if status == 404:
            return CannotAskError(
                f"{self.url}{path}: 404; give the URL of a gateway, or of its admin port if it has"
                " one (admin_port)"
            )
        return CannotAskError(f"{self.url}{path}: {status}; the gateway's log may say why")

    def _no_gateway(self, path: str) -> CannotAskError:
        return CannotAskError(
            f"{self.url}{path}: this is no answer of an Inferway gateway of this version; give the"
            " URL of one"
        )


class _RefusedError(Exception):
    """The gateway does not do, or has not got, what was asked for; the message is its own."""


def _said(error: urllib.error.HTTPError) -> str:
    """Return the message of an error's body."""
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"


def samples_of(page: str) -> Samples:
    """Return the samples of a page of /metrics."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def fleet_state(
    url: str,
    ready: Mapping[str, Any],
    admin: Mapping[str, Any],
    samples: Samples,
    *,
    now: float = 0.0,
) -> FleetState:
    """Return the state of a fleet from three answers of its gateway, without alarms. Raises
    KeyError or TypeError if they are not a gateway's. `now`: Unix time."""
    follows = admin.get("kv_events", {}).get("followed", True)
    return FleetState(
        url=url,
        ready=bool(ready["ready"]),
        why=ready.get("why"),
        requests=int(sum(_values(samples, "inferway_requests_total"))),
        engines=[_engine(each, samples, follows=follows, now=now) for each in admin["engines"]],
        models=[_model(name, told, samples) for name, told in ready["models"].items()],
    )


def _engine(told: Mapping[str, Any], samples: Samples, *, follows: bool, now: float) -> EngineState:
    def tokens(what: str) -> float:
        return sum(_values(samples, f"inferway_{what}_tokens_total", engine=told["name"]))

    load, endpoints, sent = told["load"], told["endpoints"], tokens("prompt")
    ages = [each["stream"]["age_seconds"] for each in endpoints if each["stream"]]
    since, outage = told.get("since"), told.get("outage")
    cache = max((each["state"] for each in endpoints), key=_BELIEFS.index, default="blind")
    return EngineState(
        name=told["name"],
        url=told["url"],
        state=_standing(told),
        cache=cache if follows else "-",
        in_flight=int(load["in_flight"]),
        running=int(load["running"]),
        waiting=int(load["waiting"]),
        kv_usage=float(load["kv_usage"]),
        blocks=sum(each["blocks"] for each in endpoints),
        prompt_tokens=int(sent),
        matched_share=tokens("matched") / sent if sent else None,
        delivered_share=tokens("delivered") / sent if sent else None,
        event_age_seconds=max((age for age in ages if age is not None), default=None),
        problems=list(told["problems"]),
        since_seconds=None if since is None else max(0.0, now - float(since)),
        outage=None if outage is None else str(outage["kind"]),
        kv_transfer=_transfer(told.get("kv_transfer")),
    )


def _transfer(told: Mapping[str, Any] | None) -> TransferState | None:
    if told is None:
        return None
    return TransferState(
        connector=str(told["connector"]),
        role=str(told["role"]),
        lease_seconds=float(told["lease_seconds"]),
        hands_to=[str(name) for name in told["hands_to"]],
    )


def _standing(told: Mapping[str, Any]) -> str:
    if not told["healthy"]:
        return "down"
    if told["drained"]:
        handing = told["hand_over"] is not None and told["hand_over"]["state"] == "running"
        return "draining" if handing or told["load"]["in_flight"] else "drained"
    if told["state"] in tuple(Suspension):
        return str(told["state"])
    breaker = str(told["breaker"])
    return {"closed": "up", "open": "ejected"}.get(breaker, breaker)


def _model(name: str, told: Any, samples: Samples) -> ModelState:
    requests = list(_values(samples, "inferway_requests_total", model=name))
    measured = bool(requests)
    return ModelState(
        name=name,
        routed_by=str(told["reason"]) if isinstance(told, dict) else str(told),
        requests=int(sum(requests)) if measured else None,
        ttft_p50=quantile(_buckets(samples, name), 0.5),
        ttft_p95=quantile(_buckets(samples, name), 0.95),
    )


def _values(samples: Samples, name: str, **labels: str) -> Iterable[float]:
    """Return the values of all samples that have these labels, whatever others they have."""
    wanted = set(labels.items())
    return [value for (each, has), value in samples.items() if each == name and wanted <= has]


def _buckets(samples: Samples, model: str) -> list[tuple[float, float]]:
    """(upper bound, requests up to it), in order."""
    wanted = ("model", model)
    return sorted(
        (float(dict(labels)["le"]), value)
        for (name, labels), value in samples.items()
        if name == _TTFT and wanted in labels
    )


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Return the quantile as Prometheus' histogram_quantile estimates it, or None without a
    measurement."""
    if not buckets or not buckets[-1][1]:
        return None
    rank = share * buckets[-1][1]
    below, before = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (rank - before) / (count - before)
        below, before = bound, count
    return below
