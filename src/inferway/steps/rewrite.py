"""Which model a request is for, when that is another than it names (InferenceModelRewrite)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from inferway.config import ModelRewrite


@dataclass(frozen=True, slots=True)
class Rewrites:
    """The first rule that matches decides; of its targets one is drawn by weight."""

    rules: Sequence[ModelRewrite] = ()
    random: Random = field(default_factory=Random)

    def target(self, model: str) -> str:
        """`model` itself where no rule matches."""
        for rule in self.rules:
            if not rule.models or model in rule.models:
                if len(rule.targets) == 1:
                    return rule.targets[0].model
                weights = [target.weight for target in rule.targets]
                return self.random.choices(rule.targets, weights)[0].model
        return model
