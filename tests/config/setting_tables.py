"""The tables of docs/configuration.md, as the fields of the settings have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec

from inferway.config import ServeSettings
from inferway.config.setting import RELOADED, Setting, keys_below, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

# What stands there as it is typed: a flag, a URL, a variable.
_TYPED = re.compile(r"--[a-z][a-z-]*(?:=\w+)?|\w+://[^\s,;]*[^\s,;:.)]|\$[A-Z_]+")


def parts() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the heading above each table, and the struct whose fields are its rows."""
    yield "Top level", ServeSettings
    for key, setting in keys_below(ServeSettings):
        if setting.part is not None:
            yield f"`{key.rpartition('.')[2]}`", setting.part


def with_tables(page: str) -> str:
    """Return the page with each table as it must be."""
    for heading, struct in parts():
        place = rf"(?<=\n)#+ {re.escape(heading)}\n(?:(?![#|]).*\n)*((?:\|.*\n)+)"
        found = re.search(place, page)
        assert found is not None, f"no table below {heading} in {PAGE}"
        page = page[: found.start(1)] + _table(struct) + page[found.end(1) :]
    return page


def _table(struct: type[msgspec.Struct]) -> str:
    settings = settings_of(struct).values()
    has_flags = any(setting.flag is not None for setting in settings)
    head = ["key", *(["flag"] if has_flags else []), "default", "meaning"]
    rows = [
        [f"`{s.name}`", *([_flag(s)] if has_flags else []), _default(s), _meaning(s)]
        for s in settings
    ]
    lines = [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _flag(setting: Setting) -> str:
    names = setting.flag.names.split("/") if setting.flag is not None else []
    return " ".join(f"`{name}`" for name in names)


def _default(setting: Setting) -> str:
    if setting.default in (None, msgspec.NODEFAULT):
        return _as_typed(setting.default_words)
    if isinstance(setting.default, msgspec.Struct):
        return ""
    if setting.name.endswith("_bytes"):
        return _size(setting.default)
    if isinstance(setting.default, float):
        return f"`{setting.default:g}`"
    if isinstance(setting.default, str):
        return f"`{setting.default}`"
    return f"`{json.dumps(setting.default)}`"


def _size(num_bytes: int) -> str:
    for unit, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes % (1 << unit) == 0:
            return f"{num_bytes >> unit} {name}"
    return f"`{num_bytes}`"


def _meaning(setting: Setting) -> str:
    """Return the help, of a switch with the value that its flag gives it, and what follows it."""
    text = _as_typed(setting.text)
    if setting.flag is not None and setting.flag.is_opposite:
        text = f"`false`: {text[0].lower()}{text[1:]}"
    elif setting.default is False:
        text = f"`true`: {text[0].lower()}{text[1:]}"
    words = [
        word for kind in setting.kinds if get_origin(kind) is Literal for word in get_args(kind)
    ]
    one_of = [f"One of {', '.join(f'`{word}`' for word in words)}."] if len(words) > 1 else []
    links = [f"([keys](#{setting.name}))."] if setting.part is not None else []
    text = text.removesuffix(".") if links else text
    reloaded = ["[Reloaded](flow-control.md#reloading)."] if RELOADED in setting.marks else []
    said = " ".join(filter(None, [text, *links, *one_of, setting.more, *reloaded]))
    return said.replace("|", "\\|")


def _as_typed(text: str) -> str:
    """Return a text of the help with marks around what is typed."""
    pieces = re.split(r"(`[^`]*`|\]\([^)]*\))", text)  # marked, or a link's target
    pieces[::2] = [_TYPED.sub(lambda found: f"`{found[0]}`", piece) for piece in pieces[::2]]
    return "".join(pieces)
