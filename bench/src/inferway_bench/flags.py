"""The flags of a benchmark's plan: each field that has a description is one, as in
`repeats: Annotated[int, flag("Load each router this number of times.", ge=1)] = 7`. And the files
that `--data` names: where the installed ones lie, and what is in one, packed or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.inspect import (
    BoolType,
    CustomType,
    Field,
    FloatType,
    IntType,
    ListType,
    LiteralType,
    Metadata,
    NoneType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from inferway.cli.command import Section
from inferway.cli.flag import OneOf, number_range

Parse = click.ParamType[Any] | Callable[[str], Any]


def flag(
    description: str,
    *,
    name: str = "",
    metavar: str | None = None,
    parse: Parse | None = None,
    section: Section | None = None,
    is_argument: bool = False,
    is_repeated: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> msgspec.Meta:
    """Return what makes a plan's field a flag, for `Annotated`.

    The flag is named as the field, with `--no-` before it where the field is true unless it is
    given; `name` gives it another. `parse` makes the value from the text, or is click's type. A
    tuple without `parse` is a flag that may be repeated. `ge`, `gt` and `le` are the bounds of a
    number, or of each number. `section` is a part of the help. `is_argument` has the value given
    without a flag; `is_repeated` has `parse` make one value of a tuple.
    """
    bounds = {"ge": ge, "gt": gt, "le": le}
    extra = {
        "description": description, "name": name, "metavar": metavar, "parse": parse,
        "section": section, "bounds": bounds, "is_argument": is_argument,
        "is_repeated": is_repeated,
    }  # fmt: skip
    return msgspec.Meta(extra=extra)


def data_flag(folder: str) -> msgspec.Meta:
    """Return the flag `--data` of a benchmark that reads `folder` of the data."""
    return flag(
        f"Read DIR/{folder} instead of the data that is installed with the benchmarks.",
        metavar="DIR",
    )


def parameters(plan: type[msgspec.Struct]) -> Iterator[click.Parameter]:
    """Yield the parameters of a command that fill the plan; one that is not given is None, or an
    empty tuple."""
    kind = type_info(plan)
    assert isinstance(kind, StructType)
    for field in kind.fields:
        if isinstance(field.type, Metadata) and "description" in (field.type.extra or {}):
            yield _parameter(field, field.type.type, field.type.extra or {})


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the plan that the command line has set."""
    return {name: value for name, value in flags.items() if value is not None and value != ()}


def _parameter(field: Field, kind: Type, extra: dict[str, Any]) -> click.Parameter:
    inner = _without_none(kind)
    is_many = extra["is_repeated"]
    if isinstance(inner, VarTupleType | ListType) and extra["parse"] is None:
        is_many, inner = True, inner.item_type
    click_type = extra["parse"] or _click_type(inner, extra["bounds"])
    if extra["is_argument"]:
        return click.Argument([field.name], type=click_type, metavar=extra["metavar"])
    how: dict[str, Any] = {"default": None, "help": _help(field, extra["description"], is_many)}
    prefix = "--"
    if isinstance(inner, BoolType):
        prefix = "--no-" if field.default is True else "--"
        how |= {"is_flag": True, "flag_value": field.default is not True}
    else:
        how |= {"type": click_type, "multiple": is_many, "metavar": extra["metavar"]}
    name = extra["name"] or prefix + field.name.replace("_", "-")
    option = click.Option([name, field.name], **how)
    if extra["section"] is not None:
        option.section = extra["section"]  # type: ignore[attr-defined]  # as cli.command reads it
    return option


def _click_type(kind: Type, bounds: dict[str, Any]) -> click.ParamType[Any]:
    if isinstance(kind, IntType | FloatType):
        return number_range(int if isinstance(kind, IntType) else float, **bounds)
    if isinstance(kind, LiteralType):
        return OneOf([str(value) for value in kind.values])
    if isinstance(kind, CustomType) and kind.cls is Path:
        return click.Path(path_type=Path)
    return click.STRING


def _without_none(kind: Type) -> Type:
    """The type of a value that may be missing."""
    if isinstance(kind, Metadata):
        kind = kind.type
    if isinstance(kind, UnionType):
        return next(each for each in kind.types if not isinstance(each, NoneType))
    return kind


def _help(field: Field, description: str, is_repeated: bool) -> str:
    """With the default at the end, unless it is said or empty, or the flag is a switch."""
    value = field.default
    if is_repeated and "Repeat" not in description:
        description += " Repeat the flag for more."
    has_none = value in (msgspec.NODEFAULT, None, "", ()) or isinstance(value, bool)
    if has_none or "[default:" in description:
        return description
    values = value if isinstance(value, tuple | list) else [value]
    return f"{description}  [default: {', '.join(map(str, values))}]"


_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"


def default_data_dir() -> Path:
    """Return the folder of the data that is installed with the benchmarks."""
    return Path(__file__).with_name("data")


def unpacked(path: Path) -> bytes:
    """Return the content of a file that gzip or xz has packed, or that nothing has packed: its
    first bytes show which. Raises OSError when the file cannot be read or is damaged."""
    data = path.read_bytes()
    try:
        if data.startswith(_GZIP):
            return gzip.decompress(data)
        return _without_xz(data) if data.startswith(_XZ) else data
    except (EOFError, ValueError, zlib.error) as e:
        raise OSError(f"damaged: {e}") from e


def _without_xz(data: bytes) -> bytes:
    """Raises ValueError for damaged data."""
    import lzma  # a Python that was built without liblzma has none

    try:
        return lzma.decompress(data)
    except lzma.LZMAError as e:
        raise ValueError(str(e)) from e
