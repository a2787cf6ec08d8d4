"""`inferway record`: what `inferway serve --record DIR` has written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from inferway.cli.command import Command, section
from inferway.cli.flag import OneOf, option
from inferway.errors import ConfigError
from inferway_console.records.export import ExportedRequest, Mooncake, summary
from inferway_console.records.reader import Recorded, RecordReader


@click.group()
def record() -> None:
    """Read the records of requests that `inferway serve --record DIR` writes."""


@record.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
def show(directory: Path) -> None:
    """Print a summary of what was recorded in DIRECTORY, or in one file of it."""
    reader = _reader("show", directory)
    for line in summary(reader):
        click.echo(line)
    _tell_damage("show", reader)


@record.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@section(
    "What is written",
    option(
        "--format",
        "form",
        type=OneOf(["mooncake", "jsonl"]),
        required=True,
        help="Write Mooncake's trace (timestamp, input_length, output_length and hash_ids of "
        "blocks of 512 tokens), or whole records with the ids of their blocks.",
    ),
    option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write to this file.  [default: standard output]",
    ),
    example="inferway record export records/ --format mooncake --out trace.jsonl",
)
def export(directory: Path, form: str, out: Path | None) -> None:
    """Write what was recorded in DIRECTORY, or in one file of it, for other programs."""
    reader = _reader("export", directory)
    with _opened(out) as file:
        if form == "mooncake":
            mooncake = Mooncake()
            _write(file, mooncake.requests(reader))
            if mooncake.left_out:
                _say(
                    "export",
                    f"{mooncake.left_out:,} requests are left out: their prompts or lengths are not"
                    " known",
                )
        else:
            found = (each for each in reader if isinstance(each, Recorded))
            _write(file, (ExportedRequest(each.record, each.blocks) for each in found))
    _tell_damage("export", reader)


def _write(file: BinaryIO, lines: Iterable[msgspec.Struct]) -> None:
    encode = msgspec.json.Encoder().encode
    for line in lines:
        file.write(encode(line) + b"\n")


@contextmanager
def _opened(out: Path | None) -> Iterator[BinaryIO]:
    if out is None:
        yield sys.stdout.buffer
        return
    try:
        file = out.open("wb")
    except OSError as e:
        _say("export", f"{out}: cannot be written: {e.strerror}")
        sys.exit(2)
    with file:
        yield file


def _reader(command: str, directory: Path) -> RecordReader:
    try:
        return RecordReader(directory)
    except ConfigError as e:
        _say(command, str(e))
        sys.exit(2)


def _tell_damage(command: str, reader: RecordReader) -> None:
    for sentence in reader.damaged:
        _say(command, f"{sentence}; what stands before it was read")


def _say(command: str, sentence: str) -> None:
    click.echo(f"inferway record {command}: {sentence}", err=True)
