"""The wishes in a request's headers (InferenceObjective, SLO headers, its session)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import isfinite
from operator import itemgetter

from inferway.errors import InvalidRequestError
from inferway.model import Headers
from inferway.openai_api.llm_request import Objectives

# Old and new spelling (field notes 3.5).
_OBJECTIVE = (b"x-gateway-inference-objective", b"x-llm-d-inference-objective")
TTFT = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
_TPOT = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
_SESSION = b"x-session-id"
_ALL = frozenset({*_OBJECTIVE, *TTFT, *_TPOT, _SESSION})

# llm-d's word
_TENANT = frozenset({b"x-gateway-inference-fairness-id", b"x-llm-d-inference-fairness-id"})
_NAME = itemgetter(0)  # of a header
_MAX_TENANT_BYTES = 128

_NONE = Objectives()


def objectives(
    headers: Headers, priorities: Mapping[str, int], given: int | None = None
) -> Objectives:
    """Return what the headers tell. `priorities`: objective -> priority; one that is unknown, or
    not named, has 0. `given`: the priority, whatever the headers say. Raises InvalidRequestError
    for a time that is no positive number."""
    if _ALL.isdisjoint(map(_NAME, headers)):
        return Objectives(given) if given else _NONE
    asked = {name: value for name, value in headers if name in _ALL}
    _, objective = _first(asked, _OBJECTIVE)
    return Objectives(
        priority=priorities.get(objective or "", 0) if given is None else given,
        ttft_ms=_milliseconds(asked, TTFT),
        tpot_ms=_milliseconds(asked, _TPOT),
        session=asked.get(_SESSION, b""),
    )


def named_tenant(headers: Headers) -> str:
    """Return the tenant that the headers name."""
    if _TENANT.isdisjoint(map(_NAME, headers)):
        return ""
    return tenant_name(next(value for key, value in reversed(headers) if key in _TENANT))


def tenant_name(name: bytes) -> str:
    """Return the name of a tenant as a header has it. Two long names are two tenants, though not
    kept as they are."""
    if len(name) > _MAX_TENANT_BYTES:
        return blake2b(name, digest_size=32).hexdigest()
    return name.decode("latin-1")


def _first(asked: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> tuple[str, str | None]:
    """Return the name and the value of the first of `names` that is there."""
    name = next((name for name in names if name in asked), None)
    return ("", None) if name is None else (name.decode(), asked[name].decode("latin-1"))


def _milliseconds(asked: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> float | None:
    name, text = _first(asked, names)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value <= 0:
        raise InvalidRequestError(
            f"header {name}: {text!r} is no positive number of milliseconds", param=name
        )
    return value
