"""The form of record files: gzipped lines of JSON, each an object with a `type`. A file can be read
without those before it.

header   the first line
request  a record, and the blocks of its prompt
fleet    an engine: that it is there, what it is, what its time is made up of; or has gone

Blocks are a tree. Each has an id: they count up from 0 in a file, in the order in which they are
first named. A prompt's are those up to `after`, which are known, and behind them the new ones,
whose ids are the next ones. `new` has the hash of each, eight bytes in base64: a keyed hash
(`siphash`) of a hash of its tokens and of all blocks before it. The key is in the directory, in the
file SECRET.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from inferway_console.records.record import RequestRecord

FORMAT = 1
SECRET = "secret"
PREFIX, SUFFIX = "requests-", ".jsonl.gz"


class FileHeader(msgspec.Struct, frozen=True, tag="header", tag_field="type"):
    """The first line of a file."""

    format: int
    started: float  # Unix time in seconds
    version: str  # of Inferway
    block_sizes: tuple[int, ...]  # of the engines, in tokens, when the file was begun
    salt: str  # says which secret: files with another one have other hashes
    policy: str = ""  # that chooses endpoints


class Blocks(msgspec.Struct, frozen=True):
    """The blocks of a prompt."""

    after: int  # the id of the last one that the file has named before; -1: there is none
    new: str = ""  # base64


class RequestLine(msgspec.Struct, frozen=True, tag="request", tag_field="type", omit_defaults=True):
    record: RequestRecord
    blocks: Blocks | None = None  # None: the prompt was not known, or there were several


class FleetLine(msgspec.Struct, frozen=True, tag="fleet", tag_field="type", omit_defaults=True):
    at: float  # Unix time in seconds
    event: str  # joined, left, down, up, drained, undrained, ejected, back, costs
    engine: str  # its name; of `costs` the endpoint's
    state: str = ""  # up, down, drained or ejected
    models: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    block_size: int | None = None
    cache_blocks: int | None = None  # that have room on each of its GPUs
    version: str | None = None
    # What each part of a request is expected to cost there, in ms: as learned by now.
    costs: Mapping[str, float] = {}


Line = FileHeader | RequestLine | FleetLine
