"""Messages of twelve kinds are all that processes of one gateway, and several gateways, tell each
other.

The hub tells a worker what to do (`Begin`), what the engines are and hold (`EnginesTold`,
`IndexChanged`) and what else it knows (`HubTold`); it asks (`AskWorker`), and the worker answers
(`WorkerAnswer`). A worker tells the hub what its requests have shown. What requests do and what is
learned from them is a `PeerMessage`, which workers and gateways tell each other alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from inferway.config import EngineSettings, ModelRewrite, ServeSettings
from inferway.extension import Snapshot
from inferway.fleet.elsewhere import Count
from inferway.fleet.engine import ProbeState
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.hand_over import Progress
from inferway.fleet.outage import Outage
from inferway.kv.events.stream import StreamState
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.protocol import Op
from inferway.model import Adapters, BlockKey, Cut, Endpoint, HolderId
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Event


class _Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The sockets' two ends are of one program: fields are told by their places."""


# hub -> worker


class Begin(_Told, frozen=True):
    """The first message says what the worker is to serve, and where it sends what is the hub's; a
    later one has the settings to go on with."""

    settings: ServeSettings
    place: int  # among the processes that share columns
    hub: str  # the path of the Unix socket where the hub answers by HTTP
    picks: bool
    publishes: bool  # the hub does, what workers tell


class StreamTold(_Told, frozen=True):
    """An engine's event stream, as the hub follows it."""

    source: EventSource
    holder: HolderId
    state: StreamState
    may_report: bool
    batches: int
    stored_blocks: int
    skipped: int
    topic: str | None


class EngineTold(_Told, frozen=True):
    """An engine, as the hub knows it; instead of what was told of it before."""

    settings: EngineSettings
    facts: EngineFacts | None
    healthy: bool
    cut: Cut | None
    endpoints: list[Endpoint]
    streams: list[StreamTold]
    proofs: dict[str, ProbeState]  # what the probe has found out, by model
    adapters: Adapters
    is_drained: bool
    outage: Outage | None


class EnginesTold(_Told, frozen=True):
    """The engines of which something has changed, and the names of all that there are."""

    changed: list[EngineTold]
    names: list[str]
    differed: list[str]  # models whose token ids engines do not get


class IndexChanged(_Told, frozen=True):
    """The hub's index has changed so; or this is a piece of all that it holds. `seq`: of the
    engine's batch that has changed it."""

    changes: IndexChanges
    seq: int | None = None


class HubTold(_Told, frozen=True):
    """The hub tells what Kubernetes says of objectives, and of models' names; and whether prompts
    are wanted for events without a known parent block."""

    objectives: Mapping[str, int] = {}
    rewrites: Sequence[ModelRewrite] = ()
    wants_prompts: bool = False
    is_all: bool = False  # all that was known at the worker's start has been told


class Wanted(IntEnum):
    """A worker is asked for one of these."""

    START = 0  # that it answers requests, which it says once without being asked
    ALIVE = 1  # that it goes on, and what the hub needs to know each second
    NUMBERS = 2  # its metric families
    SNAPSHOTS = 3  # what its extensions know
    SETTINGS = 4  # whether it can go on with these


class AskWorker(_Told, frozen=True):
    """The hub asks a worker; a `WorkerAnswer` of that number answers."""

    wanted: Wanted
    number: int = 0
    # by place and extension: the last snapshot's `until`
    since: Mapping[int, Mapping[str, int]] = {}
    settings: ServeSettings | None = None


class Drain(_Told, frozen=True):
    """Hand over the warm prefixes of the engine, for so long at most; None: no more. With
    `moves_streams`: after so many seconds have other engines go on with what it streams; None:
    never."""

    engine: str
    seconds: float | None
    moves_streams: bool = False


# worker -> hub


class FamilyTold(_Told, frozen=True):
    """A metric family: its samples are (name, labels, value)."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class WorkerAnswer(_Told, frozen=True):
    """A worker answers what it was asked."""

    wanted: Wanted
    number: int = 0
    families: list[FamilyTold] = []
    snapshots: dict[str, Snapshot] = {}  # by extension
    error: str | None = None  # why the settings cannot hold
    asked: list[BlockKey] = []  # the last blocks that prompts have matched, for a bounded index
    hand_overs: dict[str, Progress] = {}  # what has become of drained engines' warm prefixes


class Finding(IntEnum):
    """A worker's request has shown this of an engine, or is about to change it."""

    HAS_FAILED = 0  # a request there has, or the engine is something else than it has told
    ADDS_NOT_UP = 1  # what is believed of the holder's cache
    DROPS_LAST_BLOCK = 2  # the engine drops the last block it matches
    REPORTS = 3  # a request is about to go there that asks for a report of what it reuses
    LACKS = 4  # it has not delivered these blocks, and nothing says why


class EngineNoted(_Told, frozen=True):
    """A worker has noted this of an engine, or of the stream of an engine and a holder."""

    finding: Finding
    engine: str = ""
    holder: HolderId | None = None
    ops: list[Op] = []


class LiveSample(_Told, frozen=True):
    """A live prompt, to be compared with the ids of the engine that has answered it."""

    model: str
    engine: str
    holder: HolderId
    path: str
    fields: bytes  # JSON
    ids: list[bytes] | None  # uint32, of each prompt


class PromptTold(_Told, frozen=True):
    """A prompt in blocks."""

    ids: bytes  # uint32
    keys: list[BlockKey]


class PromptsOffered(_Told, frozen=True):
    """A request's prompts by block size, for events without a known parent block."""

    prompts: dict[int, list[PromptTold]]
    lora: str | None
    lora_path: str | None
    cache_salt: str | None


class DecisionTold(_Told, frozen=True):
    """A decision, to be published."""

    topic: str
    body: bytes  # msgpack


class Report(_Told, frozen=True):
    """The hub is to compare, use or publish this of a worker's request."""

    of: LiveSample | PromptsOffered | DecisionTold


# to all others


class Subject(IntEnum):
    """The subjects that are judged by what has become of requests."""

    ENGINE = 0  # has failed, or has answered again (`OutlierDetection`)
    SHAPE = 1  # an engine was lost with a spec, or has answered it to the end (`Quarantine`)
    REQUEST = 2  # engines were lost with it, or count no more (`RequestQuarantine`)


class Judged(_Told, frozen=True):
    """An engine, the key of a spec, or the digest of a request was judged."""

    subject: Subject
    name: str
    is_bad: bool
    engine: str = ""  # that a request was lost with; empty: all of them


class PeerTold(_Told, frozen=True):
    """A `PeerMessage` of the process in that place, or of another gateway, which the hub passes on
    unread. Nothing: it has ended, and its requests with it."""

    who: int
    payload: bytes = b""


_ToWorkers = Begin | EnginesTold | IndexChanged | HubTold | AskWorker | Drain
_ToHub = WorkerAnswer | EngineNoted | Report
_ToAll = Judged | PeerTold
Message = _ToWorkers | _ToHub | _ToAll


# what requests do, told by processes and by gateways

VERSION = 2
MOST_NAME = 128  # characters of a gateway's name
MOST_PLUGINS = 16
MOST_ITEMS = 4096  # of a list

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Plugin = Annotated[int, Meta(ge=0, lt=MOST_PLUGINS)]


class _PeerTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields are told by their places; new ones go to the end."""


class Shared(_PeerTold, frozen=True, gc=False):
    """A plugin that learns tells an event; it has a place among them. Between gateways, the `at` of
    an event is seconds ago."""

    plugin: _Plugin
    event: Event


class KnownTold(_PeerTold, frozen=True, gc=False):
    """The sender has learned this of some engines, for those that do not know it yet."""

    plugin: _Plugin
    known: Known


class OnItsWay(_PeerTold, frozen=True, gc=False):
    """A prompt is on its way to a holder, and its blocks count as held there; without blocks: they
    count no more. Processes of one gateway alone tell it, which have the same holders."""

    number: _Number  # among those of its worker
    holder: HolderId
    keys: Sequence[BlockKey] = ()


class PeerMessage(_PeerTold, frozen=True, gc=False):
    """A message tells what has happened, is so, or was learned. The first three fields are those of
    all versions: they name a gateway of another one. `begins`: all that is so follows, and whoever
    has missed a message goes on from here."""

    version: int
    number: _Number
    name: Annotated[str, Meta(max_length=MOST_NAME)]
    begins: bool = False
    shared: Annotated[list[Shared], Meta(max_length=MOST_ITEMS)] = []
    counts: Annotated[list[Count], Meta(max_length=MOST_ITEMS)] = []  # as of now
    known: Annotated[list[KnownTold], Meta(max_length=MOST_ITEMS)] = []
    prompts: Annotated[list[OnItsWay], Meta(max_length=MOST_ITEMS)] = []


encode = msgspec.msgpack.Encoder().encode
decode_peer = msgspec.msgpack.Decoder(PeerMessage).decode


def of_process(
    shared: list[Shared] | None = None,
    known: list[KnownTold] | None = None,
    prompts: list[OnItsWay] | None = None,
) -> bytes:
    """Return a message between processes of one gateway, whose connection loses none."""
    message = PeerMessage(VERSION, 0, "", False, shared or [], [], known or [], prompts or [])
    return encode(message)
