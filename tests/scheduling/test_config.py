"""A configuration -> chooser and plugins; what cannot hold is named with place and value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.scheduling.plugin_types import TYPES as ALL_TYPES
from tests.scheduling.tables import profile_of
from tests.scheduling.test_profile import REQUEST, table

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.config import build
from inferway.scheduling.document import parse_config
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import ProfileHandler, RequestListener
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.scheduling import Scheduling


class Times(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    how_often: float = 1.0


@dataclass(frozen=True)
class ByHolder:
    """Rates the first row highest; brings a column and refuses nothing."""

    times: float

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        size = len(candidates.endpoints)
        return self.times * (1 - np.arange(size) / size)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        candidates.added["seen"] = np.zeros(len(candidates.endpoints))

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        return None


@dataclass(frozen=True)
class NotFirst:
    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        return np.arange(len(candidates.endpoints)) > 0

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        return None


@dataclass(frozen=True)
class LastProfile:
    profiles: Any

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        chosen: ProfileHandler = [*self.profiles.values()][-1]
        return chosen.choose(request, candidates)


def by_holder(parameters: Times, _: Building) -> ByHolder:
    if parameters.how_often < 0:
        raise ConfigError(f"howOften: {parameters.how_often!r} is negative")
    return ByHolder(parameters.how_often)


TYPES = {
    kind.name: kind
    for kind in (
        PluginType("by-holder", "", by_holder, Times),
        PluginType("not-first", "", lambda _, __: NotFirst()),
        PluginType("best", "", lambda _, __: MaxScore()),
        PluginType("last", "", lambda _, building: LastProfile(building.profiles), is_handler=True),
        PluginType("after", "", lambda _, __: ByHolder(2.0), needs=lambda _: ("by-holder",)),
        PluginType("needy", "", lambda _, __: MaxScore(), needs=lambda _: ("by-holder",)),
    )
}


def made(**fields: object) -> Scheduling:
    return build(parse_config(fields, "file.yaml"), "file.yaml", TYPES)


def plugins(roles: Iterable[Any]) -> list[object]:
    """They are somebody else's, so each plays its roles under guard."""
    return [role.plugin for role in roles]


def chosen(scheduling: Scheduling) -> str:
    return scheduling.chooser.choose(REQUEST, table(size=3)).targets[0].endpoint.engine


def test_profiles_are_made_of_the_plugins_they_name() -> None:
    scheduling = made(
        apiVersion="llm-d.ai/v1alpha1",
        kind="EndpointPickerConfig",
        plugins=[
            {"type": "by-holder", "parameters": {"howOften": 0.5}},
            {"type": "by-holder", "name": "again"},
            {"type": "not-first"},
        ],
        schedulingProfiles=[
            {
                "name": "one",
                "plugins": [
                    {"pluginRef": "not-first"},
                    {"pluginRef": "by-holder", "weight": 3},
                    {"pluginRef": "again"},
                ],
            }
        ],
    )

    assert [weighted.weight for weighted in profile_of(scheduling).scorers] == [3.0, 1.0]
    assert chosen(scheduling) == "e1"


def test_without_profiles_there_is_one_of_all_that_belongs_into_one() -> None:
    assert chosen(made(plugins=[{"type": "by-holder"}, {"type": "not-first"}])) == "e1"


def test_what_is_more_than_a_part_of_a_profile_is_at_work() -> None:
    scheduling = made(plugins=[{"type": "by-holder"}, {"type": "not-first"}])

    assert plugins(scheduling.producers) == [ByHolder(1.0)]
    assert plugins(scheduling.following) == [ByHolder(1.0)]
    assert plugins(scheduling.admitters) == [NotFirst()]


def test_a_handler_is_given_the_profiles() -> None:
    scheduling = made(
        plugins=[{"type": "last"}, {"type": "by-holder"}, {"type": "not-first"}],
        schedulingProfiles=[
            {"name": "a", "plugins": [{"pluginRef": "by-holder"}]},
            {"name": "b", "plugins": [{"pluginRef": "not-first"}, {"pluginRef": "last"}]},
        ],
    )

    assert chosen(scheduling) == "e1"


def test_what_a_type_needs_is_added_once() -> None:
    assert plugins(made(plugins=[{"type": "needy"}]).producers) == [ByHolder(1.0)]
    both = made(plugins=[{"type": "by-holder", "name": "mine"}, {"type": "needy"}])
    assert len(both.producers) == 1


def test_what_is_always_there_is_accepted_and_said() -> None:
    scheduling = made(
        featureGates=["prepareDataPlugins"],
        plugins=[
            {"type": "token-producer", "parameters": {"modelName": "m", "vllm": {"url": "u"}}},
            {"type": "endpoint-notification-source"},
            {"type": "by-holder"},
        ],
        dataLayer={
            "sources": [
                {
                    "pluginRef": "endpoint-notification-source",
                    "extractors": [{"pluginRef": "by-holder"}],
                }
            ]
        },
        parser={"pluginRef": "openai-parser"},
        schedulingProfiles=[{"name": "p", "plugins": [{"pluginRef": "token-producer"}]}],
    )

    assert "plugins[0]: token-producer: prompts are rendered" in scheduling.notes[1]
    assert "not in force: parameters modelName, vllm" in scheduling.notes[1]


def test_who_gives_a_parameter_that_is_not_in_force_is_told() -> None:
    sessions = {"strategy": "session_id", "sessionIdConfig": {"evictionSweepSeconds": 5}}
    fields = {"plugins": [{"type": "session-affinity-scorer", "parameters": sessions}]}

    scheduling = build(parse_config(fields, "f.yaml"), "f.yaml", ALL_TYPES)

    [note] = scheduling.notes
    assert note.startswith("plugins[0]: session-affinity-scorer: ")
    assert note.endswith("; not in force: parameters sessionIdConfig.evictionSweepSeconds")


def test_a_detector_that_is_named_by_its_type_has_its_defaults() -> None:
    scheduling = made(
        plugins=[{"type": "by-holder"}], saturationDetector={"pluginRef": "not-first"}
    )

    assert plugins(scheduling.admitters) == [NotFirst()]


def test_what_another_one_needs_produces_before_it() -> None:
    scheduling = made(plugins=[{"type": "after", "name": "a"}, {"type": "by-holder"}])

    assert plugins(scheduling.producers) == [ByHolder(1.0), ByHolder(2.0)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "Pod"}, "kind: 'Pod'; expected EndpointPickerConfig"),
        ({"apiVersion": "v9"}, "apiVersion: 'v9' is not known; known: inference.networking"),
        ({"plugin": []}, "unknown field `plugin`"),
        ({"plugins": [{"type": 3}]}, "expected `str`, got `int` - at `$.plugins[0].type`"),
        (
            {"plugins": [{"type": "best"}, {"type": "bset"}]},
            "plugins[1].type: 'bset' is not known; known: after, anthropic-parser, best, ",
        ),
        (
            {"plugins": [{"type": "p2p-source-producer"}]},
            "'p2p-source-producer' is known in llm-d, not built here: fetches KV blocks",
        ),
        (
            {"plugins": [{"type": "by-holder", "parameters": {"often": 1}}]},
            "plugins[0].parameters of by-holder: object contains unknown field `often`; "
            "it takes: howOften",
        ),
        (
            {"plugins": [{"type": "best", "parameters": {"x": 1}}]},
            "unknown field `x`; it takes: none",
        ),
        (
            {"plugins": [{"type": "by-holder", "parameters": {"howOften": -1}}]},
            "plugins[0].parameters of by-holder: howOften: -1.0 is negative",
        ),
        (
            {"plugins": [{"type": "best"}, {"type": "needy", "name": "best"}]},
            "plugins[1]: name 'best' is given twice",
        ),
        (
            {"schedulingProfiles": [{"name": "p", "plugins": [{"pluginRef": "x"}]}]},
            "schedulingProfiles[0].plugins[0].pluginRef: 'x' is not among the plugins",
        ),
        (
            {
                "plugins": [{"type": "best"}],
                "schedulingProfiles": [
                    {"name": "p", "plugins": [{"pluginRef": "best", "weight": 2}]}
                ],
            },
            "schedulingProfiles[0].plugins[0].weight: 'best' is no scorer",
        ),
        (
            {
                "plugins": [{"type": "by-holder"}],
                "schedulingProfiles": [
                    {"name": "p", "plugins": [{"pluginRef": "by-holder", "weight": -2}]}
                ],
            },
            "weight: -2.0; expected a number that is not negative",
        ),
        (
            {"schedulingProfiles": [{"name": "a"}, {"name": "b"}]},
            "2 profiles need a profile handler",
        ),
        ({"schedulingProfiles": [{"name": "a"}, {"name": "a"}]}, "name: 'a' is given twice"),
        ({"featureGates": ["warp"]}, "featureGates[0]: 'warp' is not known; known: flowControl, "),
        ({"flowControl": {"maxRequests": "many"}}, "maxRequests"),
        ({"flowControl": {"maxRequest": 1}}, "unknown field `maxRequest` - at `$.flowControl`"),
        (
            {"dataLayer": {"crossReplicaSyncerPluginRef": "file-discovery"}},
            "dataLayer.crossReplicaSyncerPluginRef: 'file-discovery' is known in llm-d,",
        ),
        ({"parser": {"pluginRef": "my-parser"}}, "parser.pluginRef: 'my-parser' is not known"),
    ],
)
def test_what_cannot_hold_is_named(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**fields)

    assert str(caught.value).startswith("file.yaml: ")
    assert says in str(caught.value)
