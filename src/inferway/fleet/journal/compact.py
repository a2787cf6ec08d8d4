"""Journals -> a snapshot, in a process of its own: the gateway's event loop has no part in it.

`python -m inferway.fleet.journal.compact DIRECTORY NUMBER FILE` reads the newest snapshot in a
holder's directory and the journals after it up to NUMBER, which nobody writes any more, and
writes FILE. It changes nothing else: who started it gives the file its name (`files.install`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from inferway.errors import JournalError
from inferway.events.records import Record
from inferway.fleet.journal.entries import (
    END,
    FORMAT,
    Covered,
    Header,
    Position,
    decode_entry,
    decode_header,
    decode_record,
    encode_entry,
    encode_record,
)
from inferway.fleet.journal.files import files_up_to, payloads, write_snapshot
from inferway.fleet.journal.frames import FrameReader
from inferway.fleet.journal.shorten import shortened

NICENESS = 10
_ENTRY_RECORDS = 16


class History:
    """A snapshot and journals, one after the other."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.header: Header | None = None  # of the last file, once all are read
        self.chain = 0
        self.position: Position | None = None

    def records(self) -> Iterator[Record]:
        """All, from the start. Raises JournalError where a file is not whole, OSError."""
        self.chain = 0
        for path in self._files:
            reader = FrameReader(self.chain)
            payload = b""
            for i, payload in enumerate(payloads(path, reader)):
                if i == 0:
                    self._begin(path, payload)
                elif payload != END:
                    entry = decode_entry(payload)
                    self.position = entry.position
                    yield from map(decode_record, entry.records)
            if not reader.is_whole:
                raise JournalError(f"{path}: not whole behind byte {reader.num_good_bytes}")
            covers = self.header.covers if self.header else None
            self.chain = covers.chain if covers else reader.chain

    def _begin(self, path: Path, payload: bytes) -> None:
        self.header = decode_header(payload)
        if self.header is None:
            raise JournalError(f"{path}: its header is not one of format {FORMAT}")
        if self.header.covers is not None:
            self.position = self.header.covers.position


def compact(directory: Path, number: int, out: Path) -> None:
    """Raises JournalError if the files are not whole, OSError if they or `out` cannot be had."""
    files = files_up_to(directory, number)
    history = History(files)
    records = shortened(history.records(), History(files).records())
    first = next(records, None)  # the whole history has been read now
    header, position = history.header, history.position
    if header is None or header.number != number:
        raise JournalError(f"{directory}: there is no journal {number}")
    header = Header(FORMAT, number, header.identity, Covered(history.chain, position))
    entries: Iterator[bytes] = iter(())
    if position is not None and first is not None:
        entries = _entries(position, _all(first, records))
    write_snapshot(out, header, entries)


def _all(first: Record, others: Iterable[Record]) -> Iterator[Record]:
    yield first
    yield from others


def _entries(position: Position, records: Iterable[Record]) -> Iterator[bytes]:
    piece: list[msgspec.Raw] = []
    for record in records:
        piece.append(encode_record(record))
        if len(piece) == _ENTRY_RECORDS:
            yield encode_entry(position, piece)
            piece = []
    if piece:
        yield encode_entry(position, piece)


def _step_back() -> None:
    """The gateway comes first: for the CPU, and if there is too little memory for both."""
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(arguments: Sequence[str]) -> int:
    directory, number, out = arguments
    _step_back()
    try:
        compact(Path(directory), int(number), Path(out))
    except (JournalError, OSError, msgspec.DecodeError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
