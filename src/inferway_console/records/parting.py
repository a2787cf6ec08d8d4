"""Two requests of one caller -> where their prompts part, by what, and in which field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import RenderError
from inferway.model import TokenIds
from inferway.prompts.served import LocalPrompts
from inferway_console.records.alignment import WINDOW, common_prefix, rejoin, window_hashes
from inferway_console.records.body_difference import at_text, field_differences
from inferway_console.records.differences import REMEDIES, DifferenceKind, kind_of

_BEFORE, _BEHIND = 24, 16  # tokens that are shown
_WITHIN = 2_048  # tokens in which they may come together again


class Side(msgspec.Struct, frozen=True):
    """One of the two."""

    token_ids: TokenIds
    fields: Mapping[str, Any]
    block_size: int  # 0: not known
    shares_with: tuple[str, str | None]  # model, cache salt: only equals share blocks


def parting(left: Side, right: Side, prompts: LocalPrompts | None) -> dict[str, Any]:
    """Return where they part, for people and programs to read. `prompts` makes text of tokens; it
    may take milliseconds."""
    ours, theirs = left.token_ids, right.token_ids
    same = common_prefix(ours, theirs)
    size = left.block_size
    told: dict[str, Any] = {
        "same_tokens": same,
        "same_blocks": same // size if size else None,
        "prompt_tokens": [len(ours), len(theirs)],
        "share_blocks": left.shares_with == right.shares_with,
    }
    if not told["share_blocks"]:
        words = "their models or adapters differ, or their cache salts: they share no blocks"
        return told | {"says": words}
    if same == len(ours) == len(theirs):
        return told | {"says": f"the same, all {same} tokens"}
    blocks = f"for {same // size} blocks, then" if size else "up to"
    if same in (len(ours), len(theirs)):
        goes_on = "second" if same == len(ours) else "first"
        words = f"the same up to the end of the other one: the {goes_on} goes on after token {same}"
        return told | {"says": words, "goes_on": goes_on}
    told |= _differing(left, right, same, prompts)
    where = f" in {told['field']}" if told.get("field") else ""
    return told | {"says": f"the same {blocks} token {same}: {told['what']}{where}"}


def _differing(left: Side, right: Side, same: int, prompts: LocalPrompts | None) -> dict[str, Any]:
    before, texts = "", None
    if prompts is not None:
        texts = _texts(left, right, same, prompts)
        before = texts["same"]
    found = at_text(field_differences(left.fields, right.fields), before)
    kind = DifferenceKind.TEXT if found is None else found.kind
    if kind is DifferenceKind.TEXT and texts is not None:
        kind = kind_of(before + texts["texts"][0], before + texts["texts"][1])
    remedy = REMEDIES[kind]
    told: dict[str, Any] = {"token": same, "kind": kind, "what": remedy.what, "cure": remedy.cure}
    if found is not None:
        told |= {"field": found.field, "character": found.at}
    return told | (texts or {})


def _texts(left: Side, right: Side, same: int, prompts: LocalPrompts) -> dict[str, Any]:
    """Return what both have before the place, and what each has behind it, up to where they come
    together again."""
    ours, theirs = left.token_ids, right.token_ids
    again = rejoin(window_hashes(ours), window_hashes(theirs), same, _WITHIN)
    ends = [same + _BEHIND, same + _BEHIND]
    if again is not None and max(again.left, again.right) - same <= 4 * _BEHIND:
        ends = [again.left + WINDOW, again.right + WINDOW]
    start = max(0, same - _BEFORE)
    try:
        return {
            "same": prompts.decode(ours[start:same]),
            "texts": [prompts.decode(ours[same : ends[0]]), prompts.decode(theirs[same : ends[1]])],
        }
    except RenderError:
        return {"same": "", "texts": ["", ""]}
