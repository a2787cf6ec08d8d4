"""The model that a request is for, when that is another than it names (InferenceModelRewrite)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from inferway.config import ModelRewrite
from inferway.errors import NoEndpointError, UnknownModelError

Card = dict[str, Any]  # a model's entry in OpenAI's list
_Model = TypeVar("_Model")


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Rules for models' names: the first that matches decides, and of its targets one is drawn by
    weight."""

    rules: Sequence[ModelRewrite] = ()
    random: Random = field(default_factory=Random)

    def target(self, model: str) -> str:
        """Return the model that requests for `model` are sent to: itself where no rule matches."""
        for rule in self.rules:
            if not rule.models or model in rule.models:
                if len(rule.targets) == 1:
                    return rule.targets[0].model
                weights = [target.weight for target in rule.targets]
                return self.random.choices(rule.targets, weights)[0].model
        return model

    def names(self, model: str) -> bool:
        """Return whether a rule is for this very model."""
        return any(model in rule.models for rule in self.rules)

    def known(self, asked: str, target: str) -> str:
        """Return, of a model that was asked for and the served one that it is sent on as, the name
        that no client has made up."""
        return asked if asked == target or self.names(asked) else target

    def cards(self, served: Mapping[str, Card]) -> dict[str, Card]:
        """Return entries of a model list for the names that rules give to models of `served`: each
        as its first target that is served, and no longer than the shortest."""
        cards: dict[str, Card] = {}
        for rule in self.rules:
            targets = [served[target.model] for target in rule.targets if target.model in served]
            lengths = [t["max_model_len"] for t in targets if t["max_model_len"] is not None]
            for name in rule.models if targets else ():
                length = min(lengths, default=None)
                cards.setdefault(name, {**targets[0], "id": name, "max_model_len": length})
        return cards


def looked_up(find: Callable[[str], _Model], asked: str, target: str) -> _Model:
    """Return `find(target)`. What a rewrite names and no engine serves is not the client's fault:
    then it raises NoEndpointError, where `find` raises UnknownModelError."""
    try:
        return find(target)
    except UnknownModelError as e:
        if target == asked:
            raise
        raise NoEndpointError(
            f"model_rewrites: {asked!r} is sent to {target!r}, but {str(e).removeprefix('model: ')}"
        ) from e
