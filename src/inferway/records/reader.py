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
from inferway.records.files import (
    FORMAT,
    PREFIX,
    SUFFIX,
    Blocks,
    FleetLine,
    Header,
    Line,
    RequestLine,
)
from inferway.records.record import RequestRecord

MOST_LINE = 64 * 1024 * 1024  # bytes: a longer line is no record


class Recorded(msgspec.Struct, frozen=True):
    """A request, and the blocks of its prompt: ids, the same for the same block behind the same
    blocks in all files that are read together. None: the prompt was not known."""

    record: RequestRecord
    blocks: Sequence[int] | None


class FileRead(msgspec.Struct):
    """What was found of one file."""

    path: Path
    header: Header | None = None
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
        """What could not be read, a sentence for each file."""
        return [f"{each.path}: {each.damaged}" for each in self.files if each.damaged]

    def __iter__(self) -> Iterator[Recorded | FleetLine]:
        """Yield requests in the order in which they ended, and what became of the fleet."""
        self.files.clear()
        self._ids.clear()
        for path in self._paths:
            self.files.append(FileRead(path))
            yield from self._read(self.files[-1])

    def _read(self, file: FileRead) -> Iterator[Recorded | FleetLine]:
        number, ids, decode = 0, list[int](), msgspec.json.Decoder(Line).decode
        parents: list[int] = []
        try:
            with gzip.open(file.path, "rb") as lines:
                while raw := lines.readline(MOST_LINE):
                    number += 1
                    line = decode(raw)
                    if isinstance(line, Header):
                        if line.format != FORMAT:
                            file.damaged = f"format {line.format} is not known, only {FORMAT}"
                            return
                        file.header = line
                    elif file.header is None:
                        file.damaged = "its first line is no header"
                        return
                    elif isinstance(line, FleetLine):
                        yield line
                    else:
                        blocks = self._blocks(line, file.header.salt, ids, parents)
                        file.requests += 1
                        yield Recorded(line.record, blocks)
        except (OSError, EOFError, zlib.error) as e:
            file.damaged = f"it ends after line {number:,}: {str(e) or type(e).__name__}"
        except (msgspec.MsgspecError, UnicodeDecodeError, _BadBlocksError) as e:
            file.damaged = f"line {number:,} cannot be read: {e}"

    def _blocks(
        self, line: RequestLine, salt: str, ids: list[int], parents: list[int]
    ) -> Sequence[int] | None:
        """The ids of the prompt's blocks. `ids` and `parents` are by the file's own ids."""
        blocks = line.blocks
        if blocks is None:
            return None
        if not -1 <= blocks.after < len(ids):
            raise _BadBlocksError(f"blocks: after {blocks.after} of {len(ids)}")
        parent, found = blocks.after, list[int]()
        while parent >= 0:
            found.append(ids[parent])
            parent = parents[parent]
        found.reverse()
        parent = blocks.after
        for block in _hashes(blocks):
            parents.append(parent)
            parent = len(ids)
            ids.append(self._ids.setdefault((salt, block), len(self._ids)))
            found.append(ids[-1])
        return found


class _BadBlocksError(ValueError):
    """Blocks that are none."""


def _hashes(blocks: Blocks) -> Iterator[bytes]:
    try:
        raw = b64decode(blocks.new, validate=True)
    except Base64Error as e:
        raise _BadBlocksError(f"blocks: {e}") from e
    if len(raw) % 8:
        raise _BadBlocksError(f"blocks: {len(raw)} bytes are no hashes of 8")
    for start in range(0, len(raw), 8):
        yield raw[start : start + 8]
