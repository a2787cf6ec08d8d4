"""A configuration -> the chooser and the plugins of the request path.

One form, llm-d's EndpointPickerConfig, read as it is (field notes 3.4): `plugins` are built in
their order, `schedulingProfiles` name them, a profile handler chooses among the profiles. In our
own YAML the same keys stand under `scheduling:`.

What is absent: without profiles one is made of all filters, scorers and pickers; without a picker
a profile gets the first that is configured, else max-score-picker; the weight of a scorer is 1;
without a handler one profile needs none. Each plugin that produces, admits or follows is at work,
named in a profile or not. What a scorer needs (`PluginType.needs`) is added if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import msgspec

from inferway.errors import ConfigError
from inferway.scheduling.llmd_compat import ELSEWHERE, GATES, GATES_ELSEWHERE, PROVIDED
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import (
    Admitter,
    DataProducer,
    Filter,
    Measured,
    Picker,
    ProfileHandler,
    RequestListenerFactory,
    Scorer,
)
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.scheduling import DEFAULT_ADMITTERS, Scheduling
from inferway.scheduling.third_party import guarded

KIND = "EndpointPickerConfig"
API_VERSIONS = ("inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1")
DEFAULT_WEIGHT = 1.0
DEFAULT_PROFILE = "default"


class _Strict(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Names as llm-d spells them."""


class PluginSpec(_Strict, frozen=True):
    type: str
    name: str = ""  # the type, when absent
    parameters: dict[str, Any] | None = None


class PluginRef(_Strict, frozen=True):
    plugin_ref: str
    weight: float | None = None  # scorers only


class ProfileSpec(_Strict, frozen=True):
    name: str
    plugins: list[PluginRef] = []


class SourceSpec(_Strict, frozen=True):
    plugin_ref: str
    extractors: list[PluginRef] = []


class DataLayerSpec(_Strict, frozen=True):
    inject_defaults: bool = True
    sources: list[SourceSpec] = []
    discovery: PluginRef | None = None


class RequestHandlerSpec(_Strict, frozen=True):
    parsers: list[PluginRef] = []


class SchedulingConfig(_Strict, frozen=True):
    """The document EndpointPickerConfig."""

    api_version: str = API_VERSIONS[0]
    kind: str = KIND
    metadata: dict[str, Any] | None = None  # Kubernetes'; nothing for us
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    saturation_detector: PluginRef | None = None
    data_layer: DataLayerSpec | None = None
    parser: PluginRef | None = None
    request_handler: RequestHandlerSpec | None = None
    flow_control: dict[str, Any] | None = None


def parse_config(fields: object, place: str) -> SchedulingConfig:
    """Raises ConfigError naming place and value."""
    try:
        config = msgspec.convert(fields, SchedulingConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{place}: {_lower(str(e))}") from e
    if config.kind != KIND:
        raise ConfigError(f"{place}: kind: {config.kind!r}; expected {KIND}")
    if config.api_version not in API_VERSIONS:
        raise ConfigError(
            f"{place}: apiVersion: {config.api_version!r} is not known; known: "
            + ", ".join(API_VERSIONS)
        )
    return config


def build(
    config: SchedulingConfig,
    place: str,
    types: Mapping[str, PluginType],
    random: Random | None = None,
) -> Scheduling:
    """Build what the configuration at `place` asks for, of these types. Raises ConfigError naming
    place, value and what is known."""
    return _Build(config, place, types, random or Random()).run()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A plugin that is asked for, not built yet."""

    name: str
    kind: PluginType
    parameters: Any
    where: str

    @property
    def needs(self) -> Sequence[str]:
        return self.kind.needs(self.parameters)


@dataclass(slots=True)
class _Build:
    config: SchedulingConfig
    place: str
    types: Mapping[str, PluginType]
    random: Random
    asked: dict[str, _Asked] = field(default_factory=dict)  # by name
    provided: dict[str, str] = field(default_factory=dict)  # what is always there: name -> type
    plugins: dict[str, object] = field(default_factory=dict)  # built, by name; no handlers
    notes: list[str] = field(default_factory=list)

    def run(self) -> Scheduling:
        self._check_gates()
        for number, spec in enumerate(self.config.plugins):
            self._ask(spec, f"plugins[{number}]")
        self._check_layers()
        for asked in list(self.asked.values()):
            self._ask_for_needed(asked)
        for asked in self.asked.values():
            if not asked.kind.is_handler:
                self.plugins[asked.name] = self._built(asked, {})
        chooser = self._chooser(self._profiles())
        everything = [*(self.plugins[name] for name in self._in_order()), chooser]
        admitters = [guarded(item) for item in everything if isinstance(item, Admitter)]
        return Scheduling(
            chooser,
            [guarded(plugin) for plugin in everything if isinstance(plugin, DataProducer)],
            admitters or DEFAULT_ADMITTERS,
            [
                guarded(plugin)
                for plugin in everything
                if isinstance(plugin, RequestListenerFactory)
            ],
            [guarded(plugin) for plugin in everything if isinstance(plugin, Measured)],
            self.notes,
        )

    # plugins

    def _ask(self, spec: PluginSpec, where: str) -> None:
        name = spec.name or spec.type
        if name in self._names():
            raise self._error(f"{where}: name {name!r} is given twice; each needs one of its own")
        given = spec.parameters or {}
        if spec.type in PROVIDED:
            self.provided[name] = spec.type
            self._note(where, spec.type, PROVIDED[spec.type], list(given))
            return
        kind = self._type(spec.type, f"{where}.type")
        self.asked[name] = _Asked(name, kind, self._parameters(kind, given, where), where)
        unused = [path for path in _paths(given) if path in kind.not_in_force]
        if unused:
            self._note(where, spec.type, kind.about, unused)

    def _note(self, where: str, kind: str, about: str, unused: Sequence[str]) -> None:
        said = f"; not in force: parameters {', '.join(unused)}" if unused else ""
        self.notes.append(f"{where}: {kind}: {about}{said}")

    def _type(self, name: str, where: str) -> PluginType:
        kind = self.types.get(name)
        if kind is not None:
            return kind
        if name in ELSEWHERE:
            raise self._error(
                f"{where}: {name!r} is known in llm-d, not built here: {ELSEWHERE[name]}"
            )
        known = ", ".join(sorted([*self.types, *PROVIDED]))
        raise self._error(f"{where}: {name!r} is not known; known: {known}")

    def _parameters(self, kind: PluginType, given: Mapping[str, Any], where: str) -> Any:
        try:
            return msgspec.convert(given, kind.parameters)
        except msgspec.ValidationError as e:
            known = ", ".join(kind.parameters.__struct_encode_fields__) or "none"
            raise self._error(
                f"{where}.parameters of {kind.name}: {_lower(str(e))}; it takes: {known}"
            ) from e

    def _ask_for_needed(self, asked: _Asked) -> None:
        types = {*(other.kind.name for other in self.asked.values()), *self.provided.values()}
        for needed in asked.needs:
            if needed not in self._names() and needed not in types and needed not in PROVIDED:
                where = f"{asked.where}.parameters of {asked.kind.name}"
                self._type(needed, where)
                self._ask(PluginSpec(type=needed), where)
                self._ask_for_needed(self.asked[needed])

    def _built(self, asked: _Asked, profiles: Mapping[str, Profile]) -> object:
        types = {name: other.kind.name for name, other in self.asked.items()} | self.provided
        building = Building(self.plugins, profiles, self.random, asked.name, types)
        try:
            return asked.kind.build(asked.parameters, building)
        except ConfigError as e:
            where = f"{asked.where}.parameters of {asked.kind.name}"
            raise self._error(f"{where}: {e}") from e

    def _in_order(self) -> Sequence[str]:
        """Names of what is built; what others need before them."""
        ordered: dict[str, None] = {}

        def put(asked: _Asked, seen: frozenset[str]) -> None:
            for other in self.asked.values():
                if {other.name, other.kind.name} & {*asked.needs} and other.name not in seen:
                    put(other, seen | {other.name})
            if asked.name in self.plugins:
                ordered[asked.name] = None

        for asked in self.asked.values():
            put(asked, frozenset([asked.name]))
        return list(ordered)

    def _names(self) -> set[str]:
        return {*self.asked, *self.provided}

    # profiles

    def _profiles(self) -> dict[str, Profile]:
        specs = self.config.scheduling_profiles or [self._default_profile()]
        profiles: dict[str, Profile] = {}
        for number, spec in enumerate(specs):
            where = f"schedulingProfiles[{number}]"
            if spec.name in profiles:
                raise self._error(f"{where}.name: {spec.name!r} is given twice")
            profiles[spec.name] = self._profile(spec, where)
        return profiles

    def _default_profile(self) -> ProfileSpec:
        refs = [
            PluginRef(plugin_ref=name)
            for name, plugin in self.plugins.items()
            if isinstance(plugin, Filter | Scorer | Picker)
        ]
        return ProfileSpec(name=DEFAULT_PROFILE, plugins=refs)

    def _profile(self, spec: ProfileSpec, where: str) -> Profile:
        filters: list[Filter] = []
        scorers: list[Weighted] = []
        pickers: list[Picker] = []
        for number, ref in enumerate(spec.plugins):
            at = f"{where}.plugins[{number}]"
            plugin = self._referenced(ref, at)
            if isinstance(plugin, Scorer):
                scorers.append(Weighted(guarded(plugin), self._weight(ref, at)))
            elif ref.weight is not None:
                raise self._error(f"{at}.weight: {ref.plugin_ref!r} is no scorer; leave it out")
            if isinstance(plugin, Filter):
                filters.append(guarded(plugin))
            if isinstance(plugin, Picker):
                pickers.append(plugin)
        if len(pickers) > 1:
            raise self._error(f"{where}: more than one picker; a profile has one")
        return Profile(pickers[0] if pickers else self._any_picker(), scorers, filters)

    def _referenced(self, ref: PluginRef, at: str) -> object:
        if ref.plugin_ref in self.plugins:
            return self.plugins[ref.plugin_ref]
        if ref.plugin_ref in self._names():
            return None  # at work wherever it is named
        raise self._error(
            f"{at}.pluginRef: {ref.plugin_ref!r} is not among the plugins: "
            + ", ".join(sorted(self._names()))
        )

    def _weight(self, ref: PluginRef, at: str) -> float:
        weight = DEFAULT_WEIGHT if ref.weight is None else ref.weight
        if not 0 <= weight < float("inf"):
            raise self._error(f"{at}.weight: {weight!r}; expected a number that is not negative")
        return weight

    def _any_picker(self) -> Picker:
        pickers = [plugin for plugin in self.plugins.values() if isinstance(plugin, Picker)]
        return pickers[0] if pickers else MaxScore()

    def _chooser(self, profiles: Mapping[str, Profile]) -> ProfileHandler:
        handlers = [asked for asked in self.asked.values() if asked.kind.is_handler]
        if len(handlers) > 1:
            raise self._error(f"{handlers[1].where}: a second profile handler; there may be one")
        if handlers:
            return cast(ProfileHandler, self._built(handlers[0], profiles))  # `is_handler` says so
        if len(profiles) > 1:
            raise self._error(
                f"schedulingProfiles: {len(profiles)} profiles need a profile handler among the "
                "plugins (disagg-profile-handler), or leave all but one out"
            )
        return next(iter(profiles.values()))

    # the rest

    def _check_gates(self) -> None:
        for number, gate in enumerate(self.config.feature_gates):
            where = f"featureGates[{number}]"
            gate, _, switch = gate.partition("=")
            if gate in GATES:
                self.notes.append(f"{where}: {gate}: {GATES[gate]}")
            elif gate in GATES_ELSEWHERE and switch == "false":
                continue
            elif gate in GATES_ELSEWHERE:
                raise self._error(
                    f"{where}: {gate!r} is known in llm-d, not built here: {GATES_ELSEWHERE[gate]}"
                )
            else:
                raise self._error(f"{where}: {gate!r} is not known; known: {', '.join(GATES)}")

    def _check_layers(self) -> None:
        config = self.config
        if config.flow_control is not None:
            raise self._error(
                "flowControl: known in llm-d, not built here: " + GATES_ELSEWHERE["flowControl"]
            )
        if config.parser is not None:
            self._referenced_or_default(config.parser, "parser")
        handler = config.request_handler
        for number, parser in enumerate(handler.parsers if handler else ()):
            self._referenced_or_default(parser, f"requestHandler.parsers[{number}]")
        if config.saturation_detector is not None:
            self._referenced_or_default(config.saturation_detector, "saturationDetector")
        layer = config.data_layer
        for number, source in enumerate(layer.sources if layer else ()):
            where = f"dataLayer.sources[{number}]"
            refs = [PluginRef(plugin_ref=source.plugin_ref), *source.extractors]
            for ref in refs:
                self._referenced_or_default(ref, where)
        if layer is not None and layer.discovery is not None:
            self._referenced_or_default(layer.discovery, "dataLayer.discovery")

    def _referenced_or_default(self, ref: PluginRef, where: str) -> None:
        """By its name, or by its type alone: then it has its defaults."""
        name = ref.plugin_ref
        if name in self._names() or name in PROVIDED:
            return
        self._type(name, f"{where}.pluginRef")
        self._ask(PluginSpec(type=name), where)

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.place}: {text}")


def _paths(given: Mapping[str, Any]) -> Iterator[str]:
    """Of parameters, and of those that they hold."""
    for name, value in given.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in _paths(value))


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
