"""Choose one profile: the only one, or the one that the request names in a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferway.errors import ConfigError, InvalidRequestError
from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.registry import Building, Parameters, PluginType


class HeaderProfileParameters(Parameters, frozen=True):
    header_name: str = "EPP-Profile"
    default_profile: str = "decode"


@dataclass(frozen=True, slots=True)
class HeaderProfile:
    """The profile that the header names; `default` without the header. If there is one profile
    only, that, whatever the header says."""

    header: str
    default: str
    profiles: Mapping[str, ProfileHandler]

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Raises NoEndpointError, or InvalidRequestError for a profile that is not known."""
        if len(self.profiles) == 1:
            return next(iter(self.profiles.values())).choose(request, candidates)
        asked = (request.header(self.header.encode()) or b"").decode("latin-1").strip()
        profile = self.profiles.get(asked or self.default)
        if profile is None:
            raise InvalidRequestError(
                f"header {self.header}: {asked!r} is no profile; known: "
                + ", ".join(sorted(self.profiles)),
                param=self.header,
            )
        return profile.choose(request, candidates)


def _build(parameters: HeaderProfileParameters, building: Building) -> HeaderProfile:
    profiles, default = building.profiles, parameters.default_profile.strip() or "decode"
    if len(profiles) > 1 and default not in profiles:
        raise ConfigError(
            f"defaultProfile: {default!r} is no profile; known: {', '.join(sorted(profiles))}"
        )
    header = parameters.header_name.strip().lower() or "epp-profile"
    return HeaderProfile(header, default, profiles)


def _only(parameters: Parameters, building: Building) -> ProfileHandler:
    profiles = building.profiles
    if len(profiles) != 1:
        raise ConfigError(f"{len(profiles)} profiles ({', '.join(profiles)}); it takes one")
    return next(iter(profiles.values()))


class DataParallelParameters(Parameters, frozen=True):
    primary_port: int = 0  # not in force: requests go to the rank's own address


SINGLE = PluginType(
    "single-profile-handler", "uses the only profile for every request", _only, is_handler=True
)
DATA_PARALLEL = PluginType(
    "data-parallel-profile-handler",
    "uses the only profile for every request; each data-parallel rank of an engine is an endpoint",
    _only,
    DataParallelParameters,
    is_handler=True,
    not_in_force=frozenset({"primaryPort"}),
)
BY_HEADER = PluginType(
    "header-profile-handler",
    "uses the profile that the request's header headerName names, or defaultProfile",
    _build,
    HeaderProfileParameters,
    is_handler=True,
)
