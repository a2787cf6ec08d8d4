"""Messages of eleven kinds are all that the processes of one gateway tell each other. What they and
several gateways tell each other of requests is the twelfth (`peer_messages`).

The hub tells a worker what to do (`Begin`), what the engines are and hold (`EnginesTold`,
`IndexChanged`) and what else it knows (`HubTold`); it asks (`AskWorker`), and the worker answers
(`WorkerAnswer`). A worker tells the hub what its requests have shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from inferway.cluster.bus.peer_messages import PeerTold
from inferway.config import EngineSettings, ModelRewrite, ServeSettings
from inferway.extension import Snapshot
from inferway.fleet.engine import ProbeState
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.hand_over import Progress
from inferway.fleet.outage import Outage
from inferway.kv.events.stream import StreamState
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.protocol import Op
from inferway.model import Adapters, BlockKey, Cut, Endpoint, HolderId, MediaSpan
from inferway.routing.limits.suspension import Suspension


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
    suspension: Suspension | None


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
    media: list[MediaSpan] = []


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


_ToWorkers = Begin | EnginesTold | IndexChanged | HubTold | AskWorker | Drain
_ToHub = WorkerAnswer | EngineNoted | Report
_ToAll = Judged | PeerTold
Message = _ToWorkers | _ToHub | _ToAll
