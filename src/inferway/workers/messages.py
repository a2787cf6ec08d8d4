"""What the hub and its workers tell each other.

The hub tells a worker what it is to do (`Begin`), what the engines are and hold (`EnginesTold`,
`IndexChanged`), and that all it knew has been told (`Settled`). A worker tells the hub what it has
seen of engines that the hub should look into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from inferway.config import EngineSettings, ModelRewrite, ServeSettings
from inferway.extension import Snapshot
from inferway.fleet.engine import ProofState
from inferway.fleet.engine_facts import EngineFacts
from inferway.fleet.event_source import EventSource
from inferway.fleet.hand_over import Progress
from inferway.fleet.outage import Outage
from inferway.kv.events.stream import StreamState
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.protocol import Op
from inferway.model import Adapters, Cut, Endpoint, HolderId


class _Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The sockets' two ends are of one program: fields are told by their places."""


# hub -> worker


class Begin(_Told, frozen=True):
    """The first message: what the worker is to serve, and where it sends what is the hub's."""

    settings: ServeSettings
    place: int  # among the processes that share columns
    hub: str  # the path of the Unix socket where the hub answers by HTTP
    picks: bool = False
    publishes: bool = False  # the hub does, what workers tell


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


class ProofTold(_Told, frozen=True):
    """What the probe has found out of an engine and a model."""

    state: ProofState
    why: str
    messages: ProofState
    messages_why: str
    live: str | None


class EngineTold(_Told, frozen=True):
    """An engine, as the hub knows it; instead of what was told of it before."""

    settings: EngineSettings
    facts: EngineFacts | None
    healthy: bool
    cut: Cut | None
    endpoints: list[Endpoint]
    streams: list[StreamTold]
    proofs: dict[str, ProofTold]
    adapters: Adapters
    is_drained: bool
    outage: Outage | None


class EnginesTold(_Told, frozen=True):
    """EnginesTold of which something has changed, and the names of all that there are."""

    changed: list[EngineTold]
    names: list[str]
    differed: list[str]  # models whose token ids engines do not get


class IndexChanged(_Told, frozen=True):
    """What has changed in the hub's index; or a piece of all that it holds. `seq`: of the engine's
    batch that has changed it."""

    changes: IndexChanges
    seq: int | None = None


class Settled(_Told, frozen=True):
    """All that was known at the worker's start has been told."""


class HubTold(_Told, frozen=True):
    """What Kubernetes says of objectives, and of models' names; and whether prompts are wanted for
    events without a known parent block."""

    objectives: Mapping[str, int]
    rewrites: Sequence[ModelRewrite]
    wants_prompts: bool


class Prepare(_Told, frozen=True):
    """Get ready to go on with these settings; a `Prepared` of that number answers."""

    number: int
    settings: ServeSettings


class Commit(_Told, frozen=True):
    """Go on with these settings, which were prepared last, unless the worker was not there then."""

    settings: ServeSettings


class AskNumbers(_Told, frozen=True):
    """Ask for the worker's numbers; a `Numbers` of that number answers."""

    number: int


class Drain(_Told, frozen=True):
    """Hand over the warm prefixes of the engine, for so long at most; None: no more. With
    `moves_streams`: after so many seconds have other engines go on with what it streams; None:
    never."""

    engine: str
    seconds: float | None
    moves_streams: bool = False


class AskSnapshots(_Told, frozen=True):
    """Ask what the worker's extensions know; `SnapshotsTold` of that number answers."""

    number: int
    since: dict[str, int]  # by extension: the last snapshot's `until`


class Ping(_Told, frozen=True):
    """Ask whether the worker goes on; an `Alive` answers."""


# worker -> hub


class Ready(_Told, frozen=True):
    """The worker answers requests."""


class Prepared(_Told, frozen=True):
    number: int
    error: str | None = None  # why the settings cannot hold


class SnapshotsTold(_Told, frozen=True):
    """What the extensions of a worker know, by their names."""

    number: int
    snapshots: dict[str, Snapshot]


class FamilyTold(_Told, frozen=True):
    """A metric family: its samples are (name, labels, value)."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class Numbers(_Told, frozen=True):
    """The worker's metric families."""

    number: int
    families: list[FamilyTold]


class Suspect(_Told, frozen=True):
    """A request has just failed there, or the engine is something else than it has told."""

    engine: str


class StreamFinding(IntEnum):
    """What a worker's request has shown of an engine's event stream, or is about to change."""

    ADDS_NOT_UP = 0  # what is believed of the holder's cache
    DROPS_LAST_BLOCK = 1  # the engine drops the last block it matches
    REPORTS = 2  # a request is about to go there that asks for a report of what it reuses


class StreamNoted(_Told, frozen=True):
    """What was noted of the stream of an engine and a holder."""

    engine: str
    holder: HolderId
    noted: StreamFinding


class Doubt(_Told, frozen=True):
    """The engine has not delivered these blocks, and nothing says why."""

    ops: list[Op]


class Alive(_Told, frozen=True):
    """The answer to `Ping`: the last blocks that prompts have matched of late, for a hub whose
    index is bounded; and what has become of the warm prefixes of drained engines, by engine."""

    asked: list[int]
    hand_overs: dict[str, Progress]


# worker -> hub -> the other workers


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
    keys: list[int]


class PromptsOffered(_Told, frozen=True):
    """A request's prompts by block size, for events without a known parent block."""

    prompts: dict[int, list[PromptTold]]
    lora: str | None
    lora_path: str | None
    cache_salt: str | None


class Publish(_Told, frozen=True):
    """A decision, to be published."""

    topic: str
    body: bytes  # msgpack


class PeerTold(_Told, frozen=True):
    """What the process in that place tells the others, which the hub passes on unread
    (`workers.peers`). Nothing: the process has ended, and its requests with it."""

    place: int
    payload: bytes = b""


# both ways


class OutcomeTold(_Told, frozen=True):
    """What has come from an engine that has failed of late (`OutlierDetection.hear`)."""

    engine: str
    has_failed: bool


Message = (
    Begin
    | EnginesTold
    | IndexChanged
    | Settled
    | HubTold
    | Prepare
    | Commit
    | AskNumbers
    | Ping
    | Drain
    | Alive
    | AskSnapshots
    | SnapshotsTold
    | Ready
    | Prepared
    | Numbers
    | Suspect
    | StreamNoted
    | Doubt
    | LiveSample
    | PromptsOffered
    | Publish
    | PeerTold
    | OutcomeTold
)
