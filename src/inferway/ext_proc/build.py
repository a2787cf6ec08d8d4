"""Settings -> the endpoint picker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from inferway.config import PickerSettings, ServeSettings
from inferway.ext_proc.counts import PickerCounts
from inferway.ext_proc.health import Health
from inferway.ext_proc.picker import EndpointPicker
from inferway.ext_proc.questions import Rules
from inferway.ext_proc.server import PickerServer
from inferway.ext_proc.tls import PickerCertificate
from inferway.extension import Extension, methods
from inferway.fleet.fleet import Fleet
from inferway.openai_api.trust import Trust
from inferway.openai_api.usage import Usage
from inferway.routing.director import Director
from inferway.telemetry.request_counts import RequestCounts
from inferway.telemetry.tracing import Tracing

_COSTS: dict[str, Callable[[Usage], float]] = {
    "prompt": lambda usage: usage.prompt,
    "completion": lambda usage: usage.completion,
    "total": lambda usage: usage.prompt + usage.completion,
}


def build_picker(
    settings: ServeSettings,
    director: Director,
    fleet: Fleet,
    is_ready: Callable[[], bool],
    decided_in: Callable[[float], None],
    requests: RequestCounts,
    extensions: Sequence[Extension],
    tracing: Tracing | None,
    *,
    reuse_port: bool = False,
) -> PickerServer:
    """Return a picker's server that has not started yet. `reuse_port`: other processes listen on
    its ports as well. Raises ConfigError."""
    picker = settings.picker
    counts = PickerCounts()
    return PickerServer(
        EndpointPicker(
            *(director, fleet.everyone, decided_in),
            counts=counts,
            requests=requests,
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
            on_answer=methods(extensions, "on_answer"),
        ),
        Health(is_ready),
        host=settings.host,
        port=picker.grpc_port,
        health_port=picker.grpc_health_port,
        credentials=_credentials(picker),
        health_beside=picker.health_checking,
        reuse_port=reuse_port,
        tracing=tracing,
    )


def _credentials(picker: PickerSettings) -> PickerCertificate | None:
    if not picker.secure:
        return None
    directory = None if picker.cert_path is None else Path(picker.cert_path)
    return PickerCertificate(directory, reload=picker.reload_cert)
