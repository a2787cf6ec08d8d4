"""The section `flowControl` of an EndpointPickerConfig -> FlowControl."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, field

from inferway.errors import ConfigError
from inferway.scheduling.admitters import SaturationDetector, UtilizationDetector
from inferway.scheduling.flow_control.flow import FlowControl, PriorityBand
from inferway.scheduling.flow_control.policies import Fairness, FirstCome, GlobalStrict, Ordering
from inferway.scheduling.flow_control.usage_limits import StaticLimit, UsageLimits

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_TIMES = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_TIMES |= {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

# Kubernetes' resource.Quantity: "1k", "10Gi" or a number; and Go's durations: "1m30s".
Quantity = Annotated[str, Meta(pattern=f"^{_QUANTITY.pattern}$")] | Annotated[int, Meta(ge=0)]
Duration = Annotated[str, Meta(pattern=f"^({_DURATION.pattern})+$|^0$")]

_Policy = TypeVar("_Policy")


class Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Names as llm-d spells them."""


class BandSpec(Strict, frozen=True):
    priority: int = 0
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: Duration | None = field(default=None, name="defaultRequestTTL")
    fairness_policy_ref: str = ""
    ordering_policy_ref: str = ""

    def refs(self) -> Iterator[tuple[str, str]]:
        yield "fairnessPolicyRef", self.fairness_policy_ref
        yield "orderingPolicyRef", self.ordering_policy_ref


class DetectorSpec(Strict, frozen=True):
    plugin_ref: str = ""


class FlowControlSpec(Strict, frozen=True):
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: Duration | None = field(default=None, name="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = field(default=None, name="noEndpointRequestTTL")
    default_priority_band: BandSpec | None = None
    default_negative_priority_band: BandSpec | None = None
    priority_bands: tuple[BandSpec, ...] = ()
    usage_limit_policy_plugin_ref: str = ""
    saturation_detector: DetectorSpec = DetectorSpec()
    enable_eviction: bool = False

    def bands(self) -> Iterator[tuple[str, BandSpec]]:
        """Yield all, each with its place in the section."""
        if self.default_priority_band is not None:
            yield "defaultPriorityBand", self.default_priority_band
        if self.default_negative_priority_band is not None:
            yield "defaultNegativePriorityBand", self.default_negative_priority_band
        for number, band in enumerate(self.priority_bands):
            yield f"priorityBands[{number}]", band

    def refs(self, *, detector_only: bool = False) -> Iterator[tuple[str, str]]:
        """Yield the names of plugins, each with its place in the configuration."""
        named = [("saturationDetector.pluginRef", self.saturation_detector.plugin_ref)]
        if not detector_only:
            named.append(("usageLimitPolicyPluginRef", self.usage_limit_policy_plugin_ref))
            for where, band in self.bands():
                named += [(f"{where}.{key}", name) for key, name in band.refs()]
        for where, name in named:
            if name:
                yield f"flowControl.{where}", name

    def notes(self) -> Iterator[str]:
        """Yield what of the section is not in force, and why."""
        sized = [f"{where}.maxBytes" for where, band in self.bands() if band.max_bytes]
        if self.max_bytes:
            sized.insert(0, "maxBytes")
        if sized:
            yield (
                f"flowControl: not in force: {', '.join(sized)}: limits.bodies_bytes bounds the "
                "bytes of all requests that are here"
            )
        if self.no_endpoint_request_ttl is not None:
            yield (
                "flowControl: not in force: noEndpointRequestTTL: a request for a model without "
                "engines is answered at once"
            )


def build_flow_control(spec: FlowControlSpec, plugins: Mapping[str, object]) -> FlowControl:
    """Return what the section comes to, with these plugins by name. Raises ConfigError."""
    if spec.enable_eviction:
        raise ConfigError(
            "flowControl.enableEviction: true: known in llm-d, not built here: it ends requests "
            "that run, for others of a higher priority"
        )
    policies = _Policies(plugins)
    bands: dict[int, PriorityBand] = {}
    for where, band in spec.bands():
        if where.startswith("priorityBands"):
            if band.priority in bands:
                raise ConfigError(f"flowControl.{where}.priority: {band.priority} is given twice")
            bands[band.priority] = policies.band(where, band)
    others, negative = spec.default_priority_band, spec.default_negative_priority_band
    return FlowControl(
        policies.detector(spec),
        policies.named(
            *("usageLimitPolicyPluginRef", spec.usage_limit_policy_plugin_ref, StaticLimit()),
            *(UsageLimits, "usage limit policy"),  # type: ignore[type-abstract]
        ),
        bands,
        PriorityBand() if others is None else policies.band("defaultPriorityBand", others),
        None if negative is None else policies.band("defaultNegativePriorityBand", negative),
        _count(spec.max_requests),
        _seconds(spec.default_request_ttl),
    )


class _Policies:
    """Looks up the plugins that the section names."""

    def __init__(self, plugins: Mapping[str, object]) -> None:
        self._plugins = plugins

    def detector(self, spec: FlowControlSpec) -> SaturationDetector:
        """llm-d takes the plugin of that name also if it is not named."""
        name = spec.saturation_detector.plugin_ref
        unnamed = self._plugins.get("utilization-detector")
        default = unnamed if isinstance(unnamed, SaturationDetector) else UtilizationDetector()
        kind: Any = SaturationDetector
        found: SaturationDetector = self.named(
            "saturationDetector.pluginRef", name, default, kind, "saturation detector"
        )
        return found

    def band(self, where: str, band: BandSpec) -> PriorityBand:
        ordering: Any = Ordering
        fairness: Any = Fairness
        return PriorityBand(
            self.named(
                *(f"{where}.orderingPolicyRef", band.ordering_policy_ref, FirstCome()),
                *(ordering, "ordering policy"),
            ),
            self.named(
                *(f"{where}.fairnessPolicyRef", band.fairness_policy_ref, GlobalStrict()),
                *(fairness, "fairness policy"),
            ),
            _count(band.max_requests),
            _seconds(band.default_request_ttl),
        )

    def named(
        self, where: str, name: str, default: _Policy, kind: type[_Policy], what: str
    ) -> _Policy:
        """Return the plugin of that name; "": the default."""
        if not name:
            return default
        found = self._plugins.get(name)
        if isinstance(found, kind):
            return found
        raise ConfigError(f"flowControl.{where}: {name!r} is no {what}")


def _count(quantity: str | int | None) -> int | None:
    """None: no limit, as llm-d has it for 0."""
    if quantity is None or isinstance(quantity, int):
        return quantity or None
    found = _QUANTITY.fullmatch(quantity)
    assert found is not None  # the pattern has been checked
    return int(float(found[1]) * _TIMES[found[2] or ""]) or None


def _seconds(duration: str | None) -> float | None:
    """None: it is not given; infinite: as long as it takes."""
    if duration is None:
        return None
    seconds = sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(duration))
    return seconds or inf
