"""Settings of a simulated engine. Checked when made; nothing is read later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from inferway.errors import ConfigError
from inferway.kv.blocks.dialects import DEFAULT_SEED
from inferway_sim.kv_groups.spec import KvGroups

Mode = Literal["echo", "random", "recite"]
EventFormat = Literal["map", "array"]
Connector = Literal["nixl", "nixl-push", "mooncake", "sglang"]
Role = Literal["producer", "consumer", "both"]
LoadFailurePolicy = Literal["fail", "recompute"]


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The times of an engine, in seconds. The formulas are those of llm-d-inference-sim; see
    `scheduler`."""

    time_to_first_token: float = 0.0  # if set, prefill takes this long, whatever the prompt
    prefill_overhead: float = 0.0
    prefill_time_per_token: float = 0.0  # each prompt token that the cache does not hold
    inter_token_latency: float = 0.0
    time_factor_under_load: float = 1.0  # all of it, this much longer when max_num_seqs run
    prefill_in_turn: bool = False  # one prefill after the other, as where one fills the device

    def __post_init__(self) -> None:
        for name in ("time_to_first_token", "prefill_overhead", "prefill_time_per_token"):
            _at_least(name, getattr(self, name), 0)
        _at_least("inter_token_latency", self.inter_token_latency, 0)
        _at_least("time_factor_under_load", self.time_factor_under_load, 1)

    def times(self, factor: float) -> LatencyModel:
        """Return the times of an engine that is so many times as slow."""
        return replace(
            self,
            time_to_first_token=self.time_to_first_token * factor,
            prefill_overhead=self.prefill_overhead * factor,
            prefill_time_per_token=self.prefill_time_per_token * factor,
            inter_token_latency=self.inter_token_latency * factor,
        )


@dataclass(frozen=True, slots=True)
class EventsConfig:
    """The endpoints of KV events. They follow vLLM's rules; see `publisher`."""

    endpoint: str | None = "tcp://*:0"  # None: the engine publishes nothing
    replay_endpoint: str | None = "tcp://*:0"  # None: what is missed is lost
    topic: str = ""
    buffer_steps: int = 10_000  # batches kept for replay
    hwm: int = 100_000
    format: EventFormat = "map"  # vLLM 0.32's; "array" is what older engines send

    def __post_init__(self) -> None:
        _at_least("buffer_steps", self.buffer_steps, 0)
        _at_least("hwm", self.hwm, 0)


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """The way in which an engine hands KV blocks to others and takes theirs. The defaults are
    vLLM's, but for the times, which are 0."""

    connector: Connector = "nixl"
    # nixl: any engine does what a request asks of it; sglang: an engine does one of the two
    role: Role = "both"
    lease_seconds: float = 30.0  # so long blocks are kept for an engine that fetches them
    overhead: float = 0.0  # seconds that each transfer takes
    time_per_block: float = 0.0  # seconds that each of its blocks takes in addition
    load_failure_policy: LoadFailurePolicy = "fail"
    failure_delay: float = 0.0  # seconds until it is known that blocks cannot be had
    peer_timeout: float = 30.0  # so long a decode engine waits for the other leg
    host: str = "127.0.0.1"  # of the side channel; others reach it there
    port: int = 0

    def __post_init__(self) -> None:
        for name in ("overhead", "time_per_block", "failure_delay"):
            _at_least(f"kv-transfer: {name}", getattr(self, name), 0)
        if self.lease_seconds <= 0:
            raise ConfigError(f"kv-lease: expected more than 0, got {self.lease_seconds!r}")
        if self.connector == "sglang" and self.role == "both":
            raise ConfigError(
                "kv-role: an engine of SGLang either prefills or decodes, got 'both'; choose "
                "--kv-role producer or --kv-role consumer"
            )


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """The configuration of one simulated engine. By default it answers at once, on a free port of
    this machine."""

    model: str  # directory or hub id: what /v1/models calls the root
    served_model_names: tuple[str, ...] = ()  # none: the model's own name
    lora_modules: Mapping[str, str] = field(default_factory=dict)  # adapter -> its path
    host: str = "127.0.0.1"
    port: int = 0
    block_size: int = 16
    kv_cache_size: int = 1024  # blocks; one of them is vLLM's null block and never holds tokens
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_waiting_queue_length: int = 1000
    mode: Mode = "random"
    seed: int = 0
    hash_seed: str = DEFAULT_SEED  # what PYTHONHASHSEED is to vLLM
    enable_scale_out: bool = False  # it renders for others
    dev_mode: bool = False  # an operator can pause it, or put it to sleep
    structured: bool = False  # it seems to have our structured output
    latency: LatencyModel = field(default_factory=LatencyModel)
    events: EventsConfig = field(default_factory=EventsConfig)
    kv_transfer: TransferConfig | None = None  # None: it hands no blocks over
    kv_groups: KvGroups | None = None  # None: vLLM 0.32, one group with full attention, no drafts

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        _at_least("kv_cache_size", self.kv_cache_size, 2)
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_waiting_queue_length", self.max_waiting_queue_length, 0)
        if self.kv_groups is not None:
            self._check_groups(self.kv_groups)
            return
        room = (self.kv_cache_size - 1) * self.block_size
        if room < self.max_model_len:
            raise ConfigError(
                f"max-model-len: {self.max_model_len} tokens do not fit the KV cache, which holds "
                f"{room} ({self.kv_cache_size} blocks of {self.block_size}, one kept as null "
                f"block); raise --kv-cache-size or lower --max-model-len"
            )

    def _check_groups(self, groups: KvGroups) -> None:
        if self.kv_transfer is not None:
            raise ConfigError(
                "kv-transfer: not simulated with --kv-groups or --speculation; leave one out"
            )
        wanted = groups.num_blocks_for(self.max_model_len)
        if wanted > self.kv_cache_size - 1:
            raise ConfigError(
                f"max-model-len: {self.max_model_len} tokens take {wanted} blocks of these groups, "
                f"and the KV cache has {self.kv_cache_size - 1} beside its null block; raise "
                f"--kv-cache-size or lower --max-model-len"
            )

    @property
    def vllm_version(self) -> str:
        """The version of vLLM that is simulated."""
        return "0.32.0" if self.kv_groups is None else f"{self.kv_groups.version}.0"

    @property
    def cache_config(self) -> dict[str, Any]:
        """The part of vLLM's `cache_config` that a simulated engine has, as it is there. vLLM calls
        the smallest of the groups' block sizes the cache's."""
        told: dict[str, Any] = {
            "block_size": self.block_size,
            "num_gpu_blocks": self.kv_cache_size,
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256",
        }
        return told if self.kv_groups is None else told | self.kv_groups.cache_config

    @property
    def names(self) -> tuple[str, ...]:
        """The base model's names, the first is the one that answers carry."""
        return self.served_model_names or (self.model,)


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name.replace('_', '-')}: expected at least {least}, got {value!r}")
