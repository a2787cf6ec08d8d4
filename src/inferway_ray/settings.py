"""The keyword arguments of Serve's `request_router_kwargs` -> settings, or a ConfigError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.config import ServeSettings, converted
from inferway.errors import ConfigError
from inferway.scheduling.load import scheduling_of
from inferway_ray.stand_in import HeldModel

PLACE = "request_router_kwargs"
MODEL = "model"
# Of `inferway serve`: what concerns how engines are known and chosen.
KEYS = (
    "engine_ca",
    "engine_cert",
    "engine_key",
    "index",
    "models",
    "policy",
    "probe",
    "remote_render_ms",
    "scheduling",
    "scoring",
    "scrape_seconds",
    "trust_request_chat_template",
)


class RouterSettings(msgspec.Struct, frozen=True):
    """Settings as `inferway serve` has them, and the model of engines without HTTP."""

    serve: ServeSettings
    model: HeldModel | None = None


def router_settings(given: Mapping[str, Any]) -> RouterSettings:
    """Return the settings of a router that was given these keywords. Raises ConfigError that names
    the keyword, its value, and what is allowed."""
    unknown = sorted(set(given) - {*KEYS, MODEL})
    if unknown:
        raise ConfigError(
            f"{PLACE}: {unknown[0]!r}: expected one of {', '.join(sorted([*KEYS, MODEL]))}"
        )
    model = given.get(MODEL)
    held = None
    if model is not None:
        fields = {"id": model} if isinstance(model, str) else model
        held = converted(fields, HeldModel, f"{PLACE}: {MODEL}")
    keys = {name: value for name, value in given.items() if name != MODEL}
    serve = converted({"engines": [], **keys}, ServeSettings, PLACE)
    scheduling_of(serve, has_queue=False)
    return RouterSettings(serve, held)
