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
from inferway.scheduling.admitters import SaturationDetector
from inferway.scheduling.by_role import ByRole
from inferway.scheduling.document import (
    DataLayerSpec,
    PluginRef,
    PluginSpec,
    ProfileSpec,
    SchedulingConfig,
    lowered,
)
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.flow_control.flow import FlowControl
from inferway.scheduling.flow_control.section import FlowControlSpec, build_flow_control
from inferway.scheduling.llmd_compat import ELSEWHERE, FLOW_CONTROL, GATES, MOVED, PROVIDED
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import (
    AdmitsInTime,
    Admitter,
    DataProducer,
    Filter,
    Measured,
    Picker,
    ProfileHandler,
    ReadsColumns,
    RequestListenerFactory,
    Scorer,
)
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.scheduling import DEFAULT_ADMITTERS, Scheduling
from inferway.scheduling.session_admission import SessionAdmission
from inferway.scheduling.session_id import AgentIdentity
from inferway.scheduling.third_party import guarded

DEFAULT_WEIGHT = 1.0
DEFAULT_PROFILE = "default"


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
        has_flow_control = self._check_gates()
        for number, spec in enumerate(self.config.plugins):
            self._ask(spec, f"plugins[{number}]")
        self._check_layers(has_flow_control)
        for asked in list(self.asked.values()):
            self._ask_for_needed(asked)
        ordered = self._in_order()
        for asked in ordered:
            if not asked.kind.is_handler:
                self.plugins[asked.name] = self._built(asked, {})
        chooser = self._chooser(self._profiles())
        everything = [*self.plugins.values(), chooser]
        flow_control = self._flow_control() if has_flow_control else None
        admitters = [item for item in everything if isinstance(item, Admitter)]
        early = [each for each in admitters if not isinstance(each, ReadsColumns)]
        return Scheduling(
            chooser,
            [guarded(plugin) for plugin in everything if isinstance(plugin, DataProducer)],
            self._admitters(early, flow_control),
            [
                guarded(plugin)
                for plugin in everything
                if isinstance(plugin, RequestListenerFactory)
            ],
            [guarded(plugin) for plugin in everything if isinstance(plugin, Measured)],
            self.notes,
            [guarded(each) for each in admitters if isinstance(each, ReadsColumns)],
            flow_control,
            next((each for each in everything if isinstance(each, AgentIdentity)), None),
            next((each for each in everything if isinstance(each, SessionAdmission)), None),
            next((each for each in everything if isinstance(each, AdmitsInTime)), None),
        )

    def _admitters(
        self, early: Sequence[Admitter], flow_control: FlowControl | None
    ) -> Sequence[Admitter]:
        """With flow control detectors refuse nobody: who has no place waits. Without it, a detector
        that the configuration names is the only one."""
        others = [guarded(each) for each in early if not isinstance(each, SaturationDetector)]
        if flow_control is not None:
            return others
        detectors = [each for each in early if isinstance(each, SaturationDetector)]
        named = self._named_detector()
        if named is not None:
            detectors = [each for each in detectors if each is self.plugins.get(named)]
        return [*others, *map(guarded, detectors)] or DEFAULT_ADMITTERS

    def _named_detector(self) -> str | None:
        config = self.config
        section, older = config.flow_control, config.saturation_detector
        name = section.saturation_detector.plugin_ref if section is not None else ""
        return name or (older.plugin_ref if older is not None else None)

    def _flow_control(self) -> FlowControl:
        section = self.config.flow_control or FlowControlSpec()
        named = self._named_detector()
        if named is not None and not section.saturation_detector.plugin_ref:
            detector = msgspec.structs.replace(section.saturation_detector, plugin_ref=named)
            section = msgspec.structs.replace(section, saturation_detector=detector)
        self.notes.extend(section.notes())
        try:
            return build_flow_control(section, self.plugins)
        except ConfigError as e:
            raise self._error(str(e)) from e

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
            raise self._error(
                f"{where}.parameters of {kind.name}: {lowered(str(e))}; {self._cure(kind, given)}"
            ) from e

    def _cure(self, kind: PluginType, given: Mapping[str, Any]) -> str:
        """Return what to do about parameters that the type does not take as they are."""
        known, owner = kind.parameters.__struct_encode_fields__, MOVED.get(kind.name)
        if owner is not None:
            others = self.types[owner].parameters.__struct_encode_fields__
            moved = [name for name in given if name in others and name not in known]
            if moved:
                return f"give {', '.join(moved)} to {owner}, as llm-d does today"
        return f"it takes: {', '.join(known) or 'none'}"

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

    def _in_order(self) -> Sequence[_Asked]:
        """Return the plugins that are asked for, each behind those that it needs."""
        ordered: dict[str, _Asked] = {}

        def put(asked: _Asked, seen: frozenset[str]) -> None:
            for other in self.asked.values():
                if {other.name, other.kind.name} & {*asked.needs} and other.name not in seen:
                    put(other, seen | {other.name})
            ordered.setdefault(asked.name, asked)

        for asked in self.asked.values():
            put(asked, frozenset([asked.name]))
        return list(ordered.values())

    def _names(self) -> set[str]:
        return {*self.asked, *self.provided}

    # profiles

    def _profiles(self) -> dict[str, Profile]:
        specs = self.config.scheduling_profiles or (self._default_profile(),)
        profiles: dict[str, Profile] = {}
        for number, spec in enumerate(specs):
            where = f"schedulingProfiles[{number}]"
            if spec.name in profiles:
                raise self._error(f"{where}.name: {spec.name!r} is given twice")
            profiles[spec.name] = self._profile(spec, where)
        return profiles

    def _default_profile(self) -> ProfileSpec:
        listed = [spec.name or spec.type for spec in self.config.plugins]
        refs = [
            PluginRef(plugin_ref=name)
            for name in listed
            if isinstance(self.plugins.get(name), Filter | Scorer | Picker)
        ]
        return ProfileSpec(name=DEFAULT_PROFILE, plugins=tuple(refs))

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
        profile = next(iter(profiles.values()))
        scorers = [each.scorer for each in profile.scorers]
        others = [each for each in scorers if not isinstance(each, SessionAdmission)]
        by_cost = len(others) == 1 and isinstance(others[0], ExpectedTtft)
        return ByRole(profile, has_legs=by_cost and not profile.filters)

    # the rest

    def _check_gates(self) -> bool:
        """Return whether flow control is asked for."""
        has_flow_control = False
        for number, gate in enumerate(self.config.feature_gates):
            where = f"featureGates[{number}]"
            gate, _, switch = gate.partition("=")
            if gate == FLOW_CONTROL:
                has_flow_control = switch.strip().lower() != "false"
            elif gate in GATES:
                self.notes.append(f"{where}: {gate}: {GATES[gate]}")
            else:
                known = ", ".join([FLOW_CONTROL, *GATES])
                raise self._error(f"{where}: {gate!r} is not known; known: {known}")
        return has_flow_control

    def _check_layers(self, has_flow_control: bool) -> None:
        config = self.config
        if config.flow_control is not None:
            for where, name in config.flow_control.refs(detector_only=not has_flow_control):
                self._referenced_or_default(PluginRef(plugin_ref=name), where)
            if not has_flow_control:
                self.notes.append(
                    "flowControl: not in force, but for saturationDetector: featureGates do not "
                    f"name {FLOW_CONTROL}"
                )
        if config.parser is not None:
            self._referenced_or_default(config.parser, "parser.pluginRef")
        handler = config.request_handler
        for number, parser in enumerate(handler.parsers if handler else ()):
            self._referenced_or_default(parser, f"requestHandler.parsers[{number}].pluginRef")
        if config.saturation_detector is not None:
            self._referenced_or_default(config.saturation_detector, "saturationDetector.pluginRef")
        if config.data_layer is not None:
            self._check_data_layer(config.data_layer)

    def _check_data_layer(self, layer: DataLayerSpec) -> None:
        for number, source in enumerate(layer.sources):
            where = f"dataLayer.sources[{number}].pluginRef"
            refs = [PluginRef(plugin_ref=source.plugin_ref), *source.extractors]
            for ref in refs:
                self._referenced_or_default(ref, where)
        if layer.discovery is not None:
            self._referenced_or_default(layer.discovery, "dataLayer.discovery.pluginRef")
        if layer.peer_discovery is not None:
            self._referenced_or_default(layer.peer_discovery, "dataLayer.peerDiscovery.pluginRef")
        if layer.cross_replica_syncer_plugin_ref is not None:
            syncer = PluginRef(plugin_ref=layer.cross_replica_syncer_plugin_ref)
            self._referenced_or_default(syncer, "dataLayer.crossReplicaSyncerPluginRef")
        if layer.cross_replica_sync_interval is not None:
            self.notes.append(
                "dataLayer: not in force: crossReplicaSyncInterval: peers are told of changes at "
                "once"
            )

    def _referenced_or_default(self, ref: PluginRef, where: str) -> None:
        """Find the plugin by its name, or by its type alone: then it has its defaults."""
        name = ref.plugin_ref
        if name in self._names() or name in PROVIDED:
            return
        self._type(name, where)
        self._ask(PluginSpec(type=name), where)

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.place}: {text}")


def _paths(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of parameters, and the paths of those that they hold."""
    for name, value in given.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in _paths(value))
