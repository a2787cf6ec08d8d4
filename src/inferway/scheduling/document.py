"""llm-d's EndpointPickerConfig, as it is written. What it says is `config`'s matter."""

from __future__ import annotations

from typing import Any

import msgspec

from inferway.errors import ConfigError
from inferway.scheduling.flow_control.section import FlowControlSpec, Strict

KIND = "EndpointPickerConfig"
API_VERSIONS = ("inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1")


class PluginSpec(Strict, frozen=True):
    type: str
    name: str = ""  # the type, when absent
    parameters: dict[str, Any] | None = None


class PluginRef(Strict, frozen=True):
    plugin_ref: str
    weight: float | None = None  # scorers only


class ProfileSpec(Strict, frozen=True):
    name: str
    plugins: tuple[PluginRef, ...] = ()


class SourceSpec(Strict, frozen=True):
    plugin_ref: str
    extractors: tuple[PluginRef, ...] = ()


class DataLayerSpec(Strict, frozen=True):
    inject_defaults: bool = True
    sources: tuple[SourceSpec, ...] = ()
    discovery: PluginRef | None = None
    peer_discovery: PluginRef | None = None
    cross_replica_syncer_plugin_ref: str | None = None
    cross_replica_sync_interval: str | None = None


class RequestHandlerSpec(Strict, frozen=True):
    parsers: tuple[PluginRef, ...] = ()


class SchedulingConfig(Strict, frozen=True):
    """The document EndpointPickerConfig."""

    api_version: str = API_VERSIONS[0]
    kind: str = KIND
    metadata: dict[str, Any] | None = None  # Kubernetes'; nothing for us
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    scheduling_profiles: tuple[ProfileSpec, ...] = ()
    saturation_detector: PluginRef | None = None
    data_layer: DataLayerSpec | None = None
    parser: PluginRef | None = None
    request_handler: RequestHandlerSpec | None = None
    flow_control: FlowControlSpec | None = None


def parse_config(fields: object, place: str) -> SchedulingConfig:
    """Raises ConfigError naming place and value."""
    try:
        config = msgspec.convert(fields, SchedulingConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{place}: {lowered(str(e))}") from e
    if config.kind != KIND:
        raise ConfigError(f"{place}: kind: {config.kind!r}; expected {KIND}")
    if config.api_version not in API_VERSIONS:
        raise ConfigError(
            f"{place}: apiVersion: {config.api_version!r} is not known; known: "
            + ", ".join(API_VERSIONS)
        )
    return config


def lowered(text: str) -> str:
    """Return msgspec's sentence as a part of ours."""
    return text[0].lower() + text[1:]
