"""Filters by label."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.scheduling.plugin_types import TYPES
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError, NoEndpointError
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.plugin import Filter
from inferway.scheduling.registry import Building

ROLE = "llm-d.ai/role"
ROLES = [
    "decode",
    "prefill",
    "encode",
    "prefill-decode",
    "both",
    "encode-prefill",
    "encode-prefill-decode",
    "other",
]


def kept(kind: str, labels: list[dict[str, str]], **parameters: Any) -> list[int]:
    """The rows that a filter of that type leaves."""
    made = TYPES[kind]
    built = made.build(msgspec.convert(parameters, made.parameters), Building())
    assert isinstance(built, Filter)
    rows: list[int] = built.keep(request(), candidates(labels=labels)).nonzero()[0].tolist()
    return rows


@pytest.mark.parametrize(
    ("kind", "roles", "without"),
    [
        ("decode-filter", {"decode", "prefill-decode", "both", "encode-prefill-decode"}, True),
        (
            "prefill-filter",
            {"prefill", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode"},
            False,
        ),
        ("encode-filter", {"encode", "encode-prefill", "encode-prefill-decode"}, False),
    ],
)
def test_roles(kind: str, roles: set[str], without: bool) -> None:
    labels = [{ROLE: role} for role in ROLES] + [{}]

    rows = kept(kind, labels)

    assert {ROLES[row] for row in rows if row < len(ROLES)} == roles
    assert (len(ROLES) in rows) is without


LABELS = [{"a": "1", "b": "x"}, {"a": "2"}, {"b": "y"}, {}]


@pytest.mark.parametrize("kind", ["label-selector-filter", "by-label-selector"])
@pytest.mark.parametrize(
    ("parameters", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"matchLabels": {"a": "1"}}, [0]),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, [0, 1]),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, [1, 2, 3]),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, [0, 2]),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, [1, 3]),
        (
            {
                "matchLabels": {"a": "1"},
                "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}],
            },
            [],
        ),
    ],
)
def test_a_selector_selects_as_kubernetes_does(
    kind: str, parameters: dict[str, Any], rows: list[int]
) -> None:
    assert kept(kind, LABELS, **parameters) == rows


@pytest.mark.parametrize(
    ("operator", "values", "says"),
    [("In", [], "takes at least one"), ("Exists", ["1"], "takes none")],
)
def test_an_expression_with_the_wrong_values_is_named(
    operator: str, values: list[str], says: str
) -> None:
    expression = {"key": "a", "operator": operator, "values": values}

    with pytest.raises(ConfigError, match=rf"matchExpressions\[0\].values: .*{says}"):
        kept("label-selector-filter", LABELS, matchExpressions=[expression])


def test_by_label() -> None:
    assert kept("by-label", LABELS, label="a", validValues=["2", "3"]) == [1]
    assert kept("by-label", LABELS, label="a", validValues=["2"], allowsNoLabel=True) == [1, 2, 3]
    assert kept("by-label", LABELS, label="a", allowsNoLabel=True) == [2, 3]


def test_by_label_that_would_leave_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="validValues: empty"):
        kept("by-label", LABELS, label="a")


def test_the_filter_that_leaves_none_is_named_as_it_is_configured() -> None:
    scheduling = load_scheduling({"plugins": [{"type": "prefill-filter", "name": "prefillers"}]})

    with pytest.raises(NoEndpointError, match="prefillers removed the last 2"):
        scheduling.chooser.choose(request(), candidates(2))
