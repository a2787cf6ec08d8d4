"""Settings -> the endpoint picker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferway.config import PickerSettings
from inferway.extension import Core
from inferway.http.extension_parts import ExtensionParts
from inferway.openai_api.trust import Trust
from inferway.openai_api.usage import Usage
from inferway_llmd.ext_proc.counts import PickerCounts
from inferway_llmd.ext_proc.health import Health
from inferway_llmd.ext_proc.picker import EndpointPicker
from inferway_llmd.ext_proc.questions import Rules
from inferway_llmd.ext_proc.server import PickerServer
from inferway_llmd.ext_proc.tls import PickerCertificate

_COSTS: dict[str, Callable[[Usage], float]] = {
    "prompt": lambda usage: usage.prompt,
    "completion": lambda usage: usage.completion,
    "total": lambda usage: usage.prompt + usage.completion,
}


def build_picker(core: Core, parts: ExtensionParts) -> PickerServer:
    """Return a picker's server that has not started yet. Raises ConfigError."""
    settings, fleet, picker = core.settings, core.fleet, core.settings.picker
    counts = PickerCounts()
    return PickerServer(
        EndpointPicker(
            *(parts.director, fleet.everyone),
            counts=counts,
            requests=parts.requests,
            trust=Trust(settings.trust_kv_transfer_params, settings.trust_priority),
            max_body_bytes=settings.limits.body_bytes,
        ),
        Rules(
            find=fleet.find,
            max_body_bytes=settings.limits.body_bytes,
            most_targets=1 + picker.fallbacks,
            heed_subset=picker.heed_subset,
            explain=settings.admin_key_env is None,
            cost=None if picker.report_cost is None else _COSTS[picker.report_cost],
            conformance=picker.conformance,
            counts=counts,
            tap=parts.tap,
        ),
        Health(parts.is_ready),
        host=settings.host,
        port=picker.grpc_port,
        health_port=picker.grpc_health_port,
        credentials=_credentials(picker),
        health_beside=picker.health_checking,
        reuse_port=core.is_worker,
        tracing=parts.tracing,
    )


def _credentials(picker: PickerSettings) -> PickerCertificate | None:
    if not picker.secure:
        return None
    directory = None if picker.cert_path is None else Path(picker.cert_path)
    return PickerCertificate(directory, reload=picker.reload_cert)
