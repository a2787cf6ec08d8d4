"""Numbers of several processes, added up as if one had told them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Told = dict[str, Any]


def added_up(parts: Sequence[Told], same: Sequence[str], least: Sequence[str] = ()) -> Told:
    """Return numbers of several processes as those of one: numbers are added up, and so are those
    of the entries of lists that have equal values at the keys in `same`. Of keys in `least` the
    least number counts, of all others that are no numbers the first value."""
    whole: Told = {}
    for part in parts:
        for key, value in part.items():
            if key not in whole or value is None:
                whole.setdefault(key, value)
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                whole[key] = _lists(whole[key] + value, same, least)
            elif isinstance(value, dict):
                whole[key] = added_up([whole[key], value], same, least)
            elif key in least:
                whole[key] = min(whole[key], value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                whole[key] += value
    return whole


def _lists(entries: Sequence[Told], same: Sequence[str], least: Sequence[str]) -> list[Told]:
    groups: dict[str, list[Told]] = {}
    for entry in entries:
        groups.setdefault(repr([entry.get(key) for key in same]), []).append(entry)
    found = []
    for group in groups.values():
        kept = {key: group[0][key] for key in same if key in group[0]}
        rest = [{k: v for k, v in entry.items() if k not in same} for entry in group]
        found.append({**group[0], **added_up(rest, same, least), **kept})
    return found
