"""Record files -> what is in them, up to where they are damaged."""

from __future__ import annotations

import gzip
import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from inferway.errors import ConfigError
from inferway_console.records.files import (
    FORMAT,
    PREFIX,
    SUFFIX,
    Blocks,
    FileHeader,
    FleetLine,
    Line,
)
from inferway_console.records.record import RequestRecord

MOST_TOKENS = 1 << 28  # of a request: more are no prompt
MOST_BLOCK = 1 << 20  # tokens
LATEST = 1e11  # Unix time in seconds
MOST_LINE = 64 * 1024 * 1024  # bytes: a longer line is no record


class Recorded(msgspec.Struct, frozen=True):
    """A request, and the blocks of its prompt: ids, the same for the same block behind the same
    blocks in all files that are read together. None: the prompt was not known."""

    record: RequestRecord
    blocks: Sequence[int] | None


class FileRead(msgspec.Struct):
    """The state of one file that was read."""

    path: Path
    header: FileHeader | None = None
    requests: int = 0
    damaged: str = ""  # where and how, in words; empty: it is whole


class RecordReader:
    """Reads the files of a directory, the oldest first, or one file. `files` tells what was found
    of each, once they are read."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if there are no record files."""
        self.files: list[FileRead] = []
        self._paths = sorted(path.glob(f"{PREFIX}*{SUFFIX}")) if path.is_dir() else [path]
        self._ids: dict[tuple[str, bytes], int] = {}  # (secret, hash) -> id
        if not self._paths or not self._paths[0].is_file():
            raise ConfigError(
                f"{str(path)!r}: there are no record files; expected {PREFIX}*{SUFFIX}, as"
                " inferway serve --record DIR writes them"
            )

    @property
    def damaged(self) -> list[str]:
        """The files that could not be read whole, in a sentence each."""
        return [f"{each.path}: {each.damaged}" for each in self.files if each.damaged]

    def __iter__(self) -> Iterator[Recorded | FleetLine]:
        """Yield requests in the order in which they ended, and what became of the fleet."""
        self.files.clear()
        self._ids.clear()
        for path in self._paths:
            self.files.append(FileRead(path))
            yield from self._read(self.files[-1])

    def _read(self, file: FileRead) -> Iterator[Recorded | FleetLine]:
        lines = _Lines(file.path)
        tree = _Tree(self._ids)
        try:
            for line in lines:
                if isinstance(line, FileHeader):
                    file.header, tree.salt = line, line.salt
                elif file.header is None:
                    file.damaged = "its first line is no header"
                    return
                elif isinstance(line, FleetLine):
                    yield line
                else:
                    _check(line.record)
                    file.requests += 1
                    yield Recorded(line.record, tree.blocks(line.blocks))
        except EOFError:
            why = "its gateway still writes it, or could not end it"
            file.damaged = f"it ends after line {lines.number:,}: {why}"
        except gzip.BadGzipFile as e:
            begins = f"it is none of gzip's, as {PREFIX}*{SUFFIX} are"
            goes_wrong = f"it goes wrong after line {lines.number:,}"
            file.damaged = f"{goes_wrong if lines.number else begins}: {e}"
        except (OSError, zlib.error) as e:
            file.damaged = f"it ends after line {lines.number:,}: {str(e) or type(e).__name__}"
        except (msgspec.MsgspecError, UnicodeDecodeError, _UnreadableError) as e:
            file.damaged = f"line {lines.number:,} cannot be read: {e}"


class _UnreadableError(ValueError):
    """A line that says what it cannot say."""


def _check(record: RequestRecord) -> None:
    """Raises _UnreadableError for a number that no request has: what follows from it would fill the
    memory of whoever reads it."""
    bounds = (
        ("at", 0.0, LATEST),
        ("block_size", 0, MOST_BLOCK),
        ("prompt_tokens", -1, MOST_TOKENS),
        ("usage_prompt_tokens", -1, MOST_TOKENS),
        ("output_tokens", -1, MOST_TOKENS),
    )
    for name, least, most in bounds:
        value = getattr(record, name)
        if not least <= value <= most:
            raise _UnreadableError(f"{name}: {value!r} is not from {least:g} to {most:g}")


class _Lines:
    """The lines of a file. Raises what `RecordReader` takes for damage."""

    def __init__(self, path: Path) -> None:
        self.number = 0  # of the last line
        self._path = path

    def __iter__(self) -> Iterator[Line]:
        decode = msgspec.json.Decoder(Line).decode
        with gzip.open(self._path, "rb") as file:
            while raw := file.readline(MOST_LINE):
                self.number += 1
                line = decode(raw)
                if isinstance(line, FileHeader) and line.format != FORMAT:
                    raise _UnreadableError(f"format {line.format} is not known, only {FORMAT}")
                yield line


class _Tree:
    """The blocks that one file has named. `all_ids`: those of all files, by secret and hash."""

    def __init__(self, all_ids: dict[tuple[str, bytes], int]) -> None:
        self.salt = ""
        self._all_ids = all_ids
        self._ids: list[int] = []  # by the file's own ids
        self._parents: list[int] = []  # the same; file's own ids

    def blocks(self, named: Blocks | None) -> Sequence[int] | None:
        """Return the ids of a prompt's blocks. Raises _UnreadableError."""
        if named is None:
            return None
        ids, parents = self._ids, self._parents
        found: list[int] = []
        if not -1 <= named.after < len(ids):
            raise _UnreadableError(f"blocks: after {named.after} of {len(ids)}")
        parent = named.after
        while parent >= 0:
            found.append(ids[parent])
            parent = parents[parent]
        found.reverse()
        parent = named.after
        for block in _hashes(named):
            parents.append(parent)
            parent = len(ids)
            ids.append(self._all_ids.setdefault((self.salt, block), len(self._all_ids)))
            found.append(ids[-1])
        return found


def _hashes(blocks: Blocks) -> Iterator[bytes]:
    try:
        raw = b64decode(blocks.new, validate=True)
    except Base64Error as e:
        raise _UnreadableError(f"blocks: {e}") from e
    if len(raw) % 8:
        raise _UnreadableError(f"blocks: {len(raw)} bytes are no hashes of 8")
    for start in range(0, len(raw), 8):
        yield raw[start : start + 8]
