"""Roles in scheduling: only endpoints that answer requests are chosen; and a prompt is computed
apart from where it is answered, if that costs less.

An endpoint that only computes prompts for others (label llm-d.ai/role, or `KvTransfer.takes`) never
answers one. Whether a request goes in two legs is decided by `expected-ttft`, by milliseconds, and
only in a profile that has no other scorer, and no filter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inferway.errors import NoEndpointError
from inferway.model import ROLE, Candidates, SchedulingResult, Target
from inferway.openai_api.kv_transfer import why_one_leg
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.expected_ttft.learning import COST_MS, TRIED
from inferway.scheduling.expected_ttft.legs import Pair, best_pair
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.profile import RowSelector
from inferway.scheduling.roles import Roles, roles_of


@dataclass(frozen=True, slots=True)
class ByRole:
    """A profile, of those that answer. `has_legs`: a request may go in two."""

    profile: ProfileHandler
    has_legs: bool = False
    _roles: PerEndpoint[Roles | None] = field(
        default_factory=lambda: PerEndpoint(roles_of), repr=False, compare=False
    )
    _narrowing: RowSelector = field(default_factory=RowSelector, repr=False, compare=False)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        """Return the targets, best first. Raises NoEndpointError as the profile does, and if there
        is no endpoint that answers."""
        roles = self._roles(candidates.endpoints)
        if roles is None:
            return self.profile.choose(request, candidates)
        answering = candidates
        if roles.decodes is not None:
            answering = self._narrowing.kept(candidates, roles.decodes)
            if not answering.endpoints:
                raise NoEndpointError(
                    f"no endpoint left: by the label {ROLE}, or its connector's role, none of "
                    f"{len(candidates.endpoints)} decodes; fix: an engine with the role "
                    "decode or both"
                )
        choice = self.profile.choose(request, answering)
        if not self.has_legs or not roles.groups:
            return choice
        pair = self._pair(request, candidates, roles, choice)
        return choice if pair is None else _in_two_legs(candidates, pair, choice)

    def _pair(
        self, request: LLMRequest, candidates: Candidates, roles: Roles, choice: SchedulingResult
    ) -> Pair | None:
        """The pair that costs less than the choice; None without one."""
        cost, tried = candidates.get(COST_MS), candidates.get(TRIED)
        if cost is None or (tried is not None and np.count_nonzero(tried)):
            return None
        pair = best_pair(candidates, roles.groups, roles.engines)
        row = candidates.rows[choice.targets[0].endpoint.holder]
        if pair is None or pair.cost >= cost.item(row):
            return None
        is_known = request.prompts and request.prompts_are_whole
        return pair if is_known and why_one_leg(request.body) is None else None


def _in_two_legs(candidates: Candidates, pair: Pair, choice: SchedulingResult) -> SchedulingResult:
    first = _target(candidates, pair.decode, choice.targets[0].score)
    others = [target for target in choice.targets if target.endpoint is not first.endpoint]
    prefill = [_target(candidates, row, first.score) for row in pair.prefill]
    targets = (first, *others[: max(len(choice.targets) - 1, 1)])
    return SchedulingResult(targets, choice.headers, choice.others, choice.profile, tuple(prefill))


def _target(candidates: Candidates, row: int, score: float) -> Target:
    matched, blocks = candidates.matched_blocks.item(row), candidates.prompt_blocks.item(row)
    return Target(candidates.endpoints[row], score, int(matched), int(blocks))
