"""Blocks that go from one engine to another: what a request's parameters ask for, blocks that are
kept for others (*leases*), and the parameters that an answer carries. Without I/O (`side_channel`).

Rules from vLLM 0.32 (distributed/kv_transfer/kv_connector/v1/nixl and .../mooncake), and SGLang's
bootstrap as its gateways use it. Faults are theirs:
* a reference is bound to no prompt: who names a block gets what it holds now;
* `do_remote_prefill` without blocks ends NIXL's engine core, and so does a prompt with more blocks
  than the reference of another engine has;
* with blocks but without another field that is needed, the request waits for ever: vLLM warns that
  it does without a transfer, but has queued it for one;
* what is kept for nobody is freed when its lease ends, and may then hold anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from inferway.errors import InvalidRequestError
from inferway_sim.cache import KvCache, Run
from inferway_sim.config import TransferConfig
from inferway_sim.pool import Block

Json = dict[str, Any]

_NIXL_FIELDS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_PUSH_FIELDS = ("remote_engine_id", "remote_host", "remote_port", "tp_size")
_MOONCAKE_FIELDS = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")


class CoreDiedError(Exception):
    """An assertion of vLLM's engine core does not hold: the engine answers nothing any more."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The place where the two legs of one of SGLang's requests meet."""

    host: str | None = None
    port: int | None = None
    room: int | None = None


@dataclass(slots=True)
class Fetch:
    """Blocks that a decode engine gets from the engine at `url`."""

    url: str
    engine_id: str | None  # None: whichever is there
    key: str  # under which they are kept there
    block_ids: Sequence[int] | None = None  # None: all of them, once they are there
    sends_heartbeats: bool = False  # so that they are kept until it is its turn


@dataclass(slots=True)
class Transfer:
    """One request's part in a transfer."""

    keep_as: str = ""  # its blocks are kept under this key when it has ended
    request_id: str = ""
    fetch: Fetch | None = None  # its prompt's blocks are fetched first
    is_parked: bool = False  # it waits for blocks that are not fetched
    is_fatal: bool = False  # its turn is the engine's end
    num_cached_tokens: int | None = None  # what the engine that computed the prompt had of it
    reference: Json | None = None  # what its answer carries
    is_dropped: bool = False  # nothing is to be fetched any more


@dataclass(slots=True)
class Lease:
    """Blocks that are kept for an engine that fetches them."""

    blocks: list[Block]
    expires: float


class Connector:
    """The connector of one engine. `expire`, `keep` and `release` take the time in seconds; the
    hooks tell what is to be done outside."""

    def __init__(self, config: TransferConfig, cache: KvCache) -> None:
        self.config = config
        self.engine_id = ""
        self.host, self.port = config.host, config.port  # of its side channel, as bound
        self.leases: dict[str, Lease] = {}
        self.num_expired = 0
        self.num_late = 0  # blocks that were fetched when they were not kept any more
        self.num_failed = 0
        self.on_keep: Callable[[str], None] = lambda _key: None
        self.on_drop: Callable[[Fetch], None] = lambda _fetch: None
        self.on_transfer: Callable[[float, int], None] = lambda _seconds, _num_blocks: None
        # Faults that tests inject: what an answer carries instead, and that no block can be read.
        self.alter_reference: Callable[[Json], Json | None] = lambda reference: reference
        self.refuses_reads = False
        self.cache = cache

    def start(self, port: int) -> None:
        """The side channel is open at `port`. Each start has an engine id of its own, as vLLM's."""
        self.engine_id, self.port = str(uuid.uuid4()), port
        self.end_leases()

    @property
    def next_expiry(self) -> float:
        """The time when the next lease ends; infinite without one."""
        return min((lease.expires for lease in self.leases.values()), default=inf)

    def begin(self, contents: Sequence[Sequence[int]] | None) -> float:
        """A transfer begins, or has failed: return the time until that is over."""
        if contents is None:
            self.num_failed += 1
            return self.config.failure_delay
        seconds = self.config.overhead + len(contents) * self.config.time_per_block
        self.on_transfer(seconds, len(contents))
        return seconds

    def read(
        self, params: Mapping[str, Any] | None, bootstrap: Bootstrap, request_id: str
    ) -> Transfer | None:
        """Return what a request asks for, None if that is nothing. Raises InvalidRequestError for
        what SGLang refuses."""
        if self.config.connector == "sglang":
            return self._sglang(bootstrap)
        if not params:
            return None
        transfer = Transfer(request_id=f"{request_id}-{uuid.uuid4().hex[:8]}")
        if self.config.connector == "mooncake":
            self._read_mooncake(transfer, params)
        elif params.get("do_remote_decode"):
            is_push = self.config.connector == "nixl-push"
            transfer.keep_as = request_id if is_push else transfer.request_id
        elif params.get("do_remote_prefill"):
            self._read_nixl(transfer, params, request_id)
        return transfer

    def is_to_fetch(self, transfer: Transfer | None) -> bool:
        """Return whether a request waits for its blocks' content before it can be computed. Raises
        CoreDiedError if that is the end."""
        if transfer is None or transfer.is_dropped:
            return False
        if transfer.is_fatal:
            raise CoreDiedError
        return transfer.fetch is not None or transfer.is_parked

    def keep(self, transfer: Transfer, run: Run, num_cached: int, now: float) -> None:
        """A request has ended whose blocks are for another engine."""
        num_tokens = len(run.tokens)
        blocks = self.cache.detach(run)
        self.leases[transfer.keep_as] = Lease(blocks, now + self.config.lease_seconds)
        if self.config.connector in ("nixl", "nixl-push"):
            reference = self._reference(transfer, blocks, num_tokens, num_cached)
            transfer.reference = self.alter_reference(reference)
        self.on_keep(transfer.keep_as)

    def extend(self, keys: Sequence[str], now: float) -> None:
        """Extend the leases of blocks whose engine still waits for its turn to fetch them."""
        for key in keys:
            if key in self.leases:
                lease = self.leases[key]
                lease.expires = max(lease.expires, now + self.config.lease_seconds * 2 / 3)

    def release(self, key: str) -> None:
        """The blocks have been fetched, or are not wanted."""
        lease = self.leases.pop(key, None)
        if lease is None:
            self.num_late += 1
        else:
            self.cache.free(lease.blocks)

    def end_leases(self) -> None:
        """Give all that is kept free, as if its time were over."""
        self.expire(inf)

    def expire(self, now: float) -> None:
        """Free blocks that were not fetched in time."""
        for key in [key for key, lease in self.leases.items() if lease.expires <= now]:
            self.cache.free(self.leases.pop(key).blocks)
            self.num_expired += 1

    def drop(self, transfer: Transfer) -> None:
        """Nothing is to be fetched for this request any more."""
        if not transfer.is_dropped:
            transfer.is_dropped = True
            if transfer.fetch is not None:
                self.on_drop(transfer.fetch)

    def _sglang(self, bootstrap: Bootstrap) -> Transfer:
        if bootstrap.room is None:
            raise InvalidRequestError(
                "Invalid request: Disaggregated request received without bootstrap room id."
            )
        key = str(bootstrap.room)
        if self.config.role == "producer":
            return Transfer(keep_as=key)
        url = f"http://{bootstrap.host}:{bootstrap.port}"
        return Transfer(fetch=Fetch(url, None, key))

    def _read_mooncake(self, transfer: Transfer, params: Mapping[str, Any]) -> None:
        if params.get("do_remote_prefill"):
            if self.config.role == "producer":
                transfer.is_fatal = True
            elif all(name in params for name in _MOONCAKE_FIELDS):
                url, engine_id = params["remote_bootstrap_addr"], params["remote_engine_id"]
                transfer.fetch = Fetch(url, engine_id, params["transfer_id"])
            else:
                transfer.is_parked = True
        elif params.get("do_remote_decode"):
            transfer.is_fatal = self.config.role == "consumer"
            transfer.keep_as = params.get("transfer_id") or ""

    def _read_nixl(self, transfer: Transfer, params: Mapping[str, Any], request_id: str) -> None:
        cached = params.get("remote_prefill_cached_tokens")
        transfer.num_cached_tokens = cached if type(cached) is int else None
        is_push = self.config.connector == "nixl-push"
        ids = None if is_push else _first_group(params.get("remote_block_ids"))
        if not (ids or is_push):
            transfer.is_fatal = True
        elif not all(name in params for name in (_PUSH_FIELDS if is_push else _NIXL_FIELDS)):
            # Push needs them where pull only warns.
            transfer.is_fatal, transfer.is_parked = is_push, not is_push
        else:
            transfer.fetch = Fetch(
                f"http://{params['remote_host']}:{params['remote_port']}",
                params["remote_engine_id"],
                request_id if is_push else params["remote_request_id"],
                ids,
                sends_heartbeats=params.get("tp_size") is not None,
            )

    def _reference(
        self, transfer: Transfer, blocks: Sequence[Block], num_tokens: int, num_cached: int
    ) -> Json:
        is_push = self.config.connector == "nixl-push"
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[block.id for block in blocks]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": transfer.request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            **({} if is_push else {"remote_blocks_expiry_time": None}),
            "transfer_mode": "push" if is_push else "pull",
            "remote_prefill_cached_tokens": num_cached,
        }


def _first_group(block_ids: Any) -> list[int] | None:
    """The block ids of a model's only KV cache group; None for what is no list of lists of them."""
    match block_ids:
        case [list(ids), *_] if all(type(id) is int for id in ids):
            return ids
    return None
