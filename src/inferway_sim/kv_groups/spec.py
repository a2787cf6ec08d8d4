"""The KV cache groups of a model and how it is speculated: what is configured, and what follows
from it for hashes and hits. Rules from vLLM 0.32 and 0.33 (v1/core/kv_cache_utils.py and
v1/core/kv_cache_coordinator.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm
from typing import Any, Literal

from inferway.errors import ConfigError

GroupKind = Literal["full", "window", "local", "mamba"]
MambaMode = Literal["align", "all"]
VllmVersion = Literal["0.32", "0.33"]
SpeculationMethod = Literal["none", "ngram", "eagle", "mtp"]

GRAMMAR = (
    "full[:SIZE], window:TOKENS[:SIZE], local:CHUNK[:SIZE], mamba:align[:SIZE], mamba:all[:SIZE]"
)


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One group of layers, whose KV cache has blocks of `block_size` tokens."""

    kind: GroupKind
    block_size: int
    reach: int = 0  # tokens of the window, or of the attention chunk
    mode: MambaMode = "align"  # of a Mamba group

    @property
    def aligns(self) -> bool:
        """True if states are kept only where a step ends."""
        return self.kind == "mamba" and self.mode == "align"

    @property
    def is_fine(self) -> bool:
        """True if vLLM can end a hit within a block of this group."""
        return self.kind in ("full", "mamba")


@dataclass(frozen=True, slots=True)
class SpeculativeDecoding:
    """The drafting of tokens. With `hash_lookahead` each block's hash also covers that number of
    tokens after the block, which vLLM 0.33 has instead of dropping the last block of a hit."""

    method: SpeculationMethod = "none"
    num_tokens: int = 0  # drafted in each step
    hash_lookahead: int = 0
    acceptance: float = 0.5  # share of the drafted tokens that are accepted

    def __post_init__(self) -> None:
        if self.method == "none":
            if self.num_tokens or self.hash_lookahead:
                raise ConfigError(
                    "speculation: expected ngram, eagle or mtp where --num-speculative-tokens or "
                    "--hash-lookahead-tokens is given, got 'none'; choose one with --speculation"
                )
            return
        if self.num_tokens < 1:
            raise ConfigError(
                f"num-speculative-tokens: expected at least 1 with {self.method}, got "
                f"{self.num_tokens!r}; choose --speculation none to draft nothing"
            )
        if not 0 <= self.acceptance <= 1:
            raise ConfigError(f"speculation-acceptance: expected 0 to 1, got {self.acceptance!r}")
        allowed = {"ngram": {0}, "eagle": {0, 1}, "mtp": {0, 1, self.num_tokens}}[self.method]
        if self.hash_lookahead not in allowed:
            raise ConfigError(
                f"hash-lookahead-tokens: with {self.method} and {self.num_tokens} draft tokens "
                f"expected {_one_of(allowed)}, got {self.hash_lookahead!r}; leave it out"
            )

    @property
    def has_draft_layers(self) -> bool:
        """True if the drafter has a KV cache of its own."""
        return self.method in ("eagle", "mtp")

    @property
    def drops_last_block(self) -> bool:
        """True if a hit loses its last block, because the drafter's KV there is not certain."""
        return self.has_draft_layers and not self.hash_lookahead

    @property
    def num_lookahead_slots(self) -> int:
        """Tokens that a step takes room for after those that it computes."""
        return self.num_tokens if self.has_draft_layers else 0

    @property
    def prefill_lookahead(self) -> int:
        """Tokens of the prompt that the drafter reads beyond what is computed."""
        return max(1, self.hash_lookahead) if self.has_draft_layers else 0


@dataclass(frozen=True)
class KvGroups:
    """The KV cache of a model with these groups, all in one pool of blocks."""

    groups: tuple[KvGroup, ...]
    retention_interval: int | None = 0  # prefix_cache_retention_interval; None: all is kept
    match_unit: int | None = None  # prefix_match_unit, in tokens; None: vLLM's choice
    speculation: SpeculativeDecoding = SpeculativeDecoding()
    max_num_batched_tokens: int = 8192  # that one step computes of a prompt
    version: VllmVersion = "0.32"  # of vLLM, whose rules are followed

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError(f"kv-groups: expected at least one group: {GRAMMAR}")
        self._check_sizes()
        self._check_hashes()
        self._check_retention()
        self._check_steps()

    @cached_property
    def block_size(self) -> int:
        """Tokens that are a whole number of blocks in every group: vLLM's scheduler block."""
        return lcm(*self._sizes)

    @cached_property
    def hash_unit(self) -> int:
        """Tokens from one block hash to the next."""
        if self._has_dense_mamba or len(self.groups) == 1:
            return self.block_size
        return self.match_unit or gcd(*self._sizes)

    @cached_property
    def alignment(self) -> int:
        """Hits end at multiples of this number of tokens."""
        return self.hash_unit if self.has_fine_hits else self.block_size

    @cached_property
    def has_fine_hits(self) -> bool:
        """True if hits end within blocks: at states that Mamba kept there."""
        unit = self.hash_unit
        return (
            len(self.groups) > 1
            and any(group.aligns and group.block_size > unit for group in self.groups)
            and all(group.is_fine or group.block_size == unit for group in self.groups)
        )

    @cached_property
    def aligned_size(self) -> int | None:
        """The block size at whose multiples steps of a prompt end; None if they end anywhere."""
        return self.smallest_size if any(group.aligns for group in self.groups) else None

    @property
    def smallest_size(self) -> int:
        """The smallest block size: the one that vLLM calls the block size of the cache."""
        return min(self._sizes)

    @cached_property
    def draft_groups(self) -> frozenset[int]:
        """The groups that drop the last block of a hit. vLLM knows the one that has the layers of
        MTP, and takes all where it does not know."""
        if not self.speculation.drops_last_block:
            return frozenset()
        full = [i for i, group in enumerate(self.groups) if group.kind == "full"]
        if self.speculation.method == "mtp" and full:
            return frozenset(full[:1])
        return frozenset(range(len(self.groups)))

    @property
    def cache_config(self) -> dict[str, Any]:
        """The part of vLLM's `cache_config` that tells of the groups."""
        full = {group.block_size for group in self.groups if group.kind == "full"}
        mamba = next((group for group in self.groups if group.kind == "mamba"), None)
        return {
            "block_size": self.smallest_size,
            "effective_attention_block_size": full.pop() if len(full) == 1 else None,
            "mamba_block_size": None if mamba is None else mamba.block_size,
            "mamba_cache_mode": "none" if mamba is None else mamba.mode,
            "prefix_cache_retention_interval": self.retention_interval,
            "prefix_match_unit": self.match_unit,
        }

    def last_state(self, num_tokens: int, unit: int) -> int:
        """Return where a prompt of so many tokens has the last state, at a multiple of `unit`, that
        can serve the same prompt again."""
        drops = self.speculation.drops_last_block
        ahead = 0 if drops else max(1, self.speculation.hash_lookahead)
        return max(0, (num_tokens - ahead) // unit * unit - unit * drops)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a request of so many tokens needs at most at a time."""
        return sum(self.held_at_most(group, num_tokens) for group in self.groups)

    def most_tokens(self, num_blocks: int) -> int:
        """Return how many tokens a request can have where there are so many blocks."""
        fits = range(num_blocks * max(self._sizes) + 1)
        return bisect_right(fits, num_blocks, key=self.num_blocks_for) - 1

    def held_at_most(self, group: KvGroup, num_tokens: int) -> int:
        """Return how many blocks a request of so many tokens holds at most in that group."""
        drafts, size = self.speculation.num_tokens, group.block_size
        match group.kind:
            case "window":
                held = group.reach - 1 + self.num_retained_tokens + self.max_num_batched_tokens
                return -(-min(held, num_tokens) // size) + 1  # it need not begin with a block
            case "local":
                held = group.reach + self.max_num_batched_tokens
                return -(-min(held, num_tokens) // size)
            case "mamba" if group.aligns:
                return 2 + drafts
            case "mamba":
                return -(-num_tokens // size) + drafts
        return -(-(num_tokens + self.speculation.num_lookahead_slots) // size)

    @cached_property
    def num_retained_tokens(self) -> int:
        """Tokens before a window that are kept, and that are not found again at a run's end."""
        return max(0, self.speculation.prefill_lookahead - 1)

    @property
    def _sizes(self) -> list[int]:
        return [group.block_size for group in self.groups]

    @property
    def _has_dense_mamba(self) -> bool:
        return any(group.kind == "mamba" and group.mode == "all" for group in self.groups)

    def _check_sizes(self) -> None:
        for group in self.groups:
            if group.block_size < 1:
                raise ConfigError(f"kv-groups: block size {group.block_size!r}: expected 1 or more")
        if len(set(self._sizes)) == 1:
            return
        if any(group.kind == "local" for group in self.groups):
            raise ConfigError(
                f"kv-groups: block sizes {self._sizes}: with a local group vLLM needs one size for "
                "all groups; give all the same SIZE"
            )
        if self._has_dense_mamba:
            raise ConfigError(
                f"kv-groups: block sizes {self._sizes}: with mamba:all vLLM needs one size for all "
                "groups; give all the same SIZE, or choose mamba:align"
            )
        aligned = {group.block_size for group in self.groups if group.aligns}
        if len(aligned) > 1:
            raise ConfigError(
                f"kv-groups: block sizes {sorted(aligned)} of mamba:align: vLLM has one size for "
                "all states; give all mamba groups the same SIZE"
            )

    def _check_hashes(self) -> None:
        if self.version == "0.33" and self._has_dense_mamba:
            raise ConfigError(
                "kv-groups: mamba:all is gone from vLLM 0.33; choose mamba:align, or "
                "--vllm-version 0.32"
            )
        self._check_lookahead()
        self._check_unit()

    def _check_lookahead(self) -> None:
        ahead = self.speculation.hash_lookahead
        if ahead and self.version == "0.32":
            raise ConfigError(
                f"hash-lookahead-tokens: expected 0 with vLLM 0.32, got {ahead!r}; choose "
                "--vllm-version 0.33"
            )
        if ahead > 1 and not any(group.kind == "full" for group in self.groups):
            raise ConfigError(
                f"hash-lookahead-tokens: expected 0 or 1 without a full group, got {ahead!r}: "
                "vLLM 0.33 fails there when it looks for hashes that are not there yet; add a full "
                "group"
            )
        if self.speculation.prefill_lookahead > self.block_size:
            raise ConfigError(
                f"hash-lookahead-tokens: expected at most {self.block_size}, the least common "
                f"multiple of the block sizes, got {ahead!r}; draft fewer tokens"
            )
        if any(self.groups[i].kind == "local" for i in self.draft_groups):
            raise ConfigError(
                "kv-groups: vLLM has no local group whose hits lose a block to the drafter; choose "
                "--speculation none, ngram, or mtp beside a full group"
            )

    def _check_unit(self) -> None:
        unit = self.match_unit
        if unit is None:
            return
        if len(self.groups) == 1 or self._has_dense_mamba:
            if unit != self.block_size:
                raise ConfigError(
                    f"prefix-match-unit: expected {self.block_size}, the block size, for one group "
                    f"or mamba:all, got {unit!r}; leave it out"
                )
        elif unit < 1 or any(size % unit for size in self._sizes):
            raise ConfigError(
                f"prefix-match-unit: expected a divisor of the groups' block sizes {self._sizes}, "
                f"got {unit!r}; leave it out for the greatest"
            )

    def _check_retention(self) -> None:
        interval = self.retention_interval
        if not interval:
            return
        if not any(group.kind in ("window", "mamba") for group in self.groups):
            raise ConfigError(
                f"prefix-cache-retention-interval: {interval!r} has no effect without a window or "
                "mamba group; leave it out"
            )
        if interval < 0 or interval % self.block_size:
            raise ConfigError(
                f"prefix-cache-retention-interval: expected 0 or a multiple of {self.block_size}, "
                f"the least common multiple of the block sizes, got {interval!r}; none keeps all"
            )

    def _check_steps(self) -> None:
        least = max(self.block_size, self.speculation.num_tokens + 1)
        if self.max_num_batched_tokens < least:
            raise ConfigError(
                f"max-num-batched-tokens: expected at least {least}, the least common multiple of "
                f"the block sizes or a step's draft, got {self.max_num_batched_tokens!r}; "
                "raise it, or give smaller SIZEs"
            )


_MODES: dict[str, MambaMode] = {"align": "align", "all": "all"}


def read_groups(text: str, block_size: int) -> tuple[KvGroup, ...]:
    """Read `--kv-groups`: groups with commas between, `block_size` for those without a SIZE. Raises
    ConfigError."""
    return tuple(_read_group(part.strip(), block_size) for part in text.split(","))


def read_interval(text: str) -> int | None:
    """Read `--prefix-cache-retention-interval`; None keeps all. Raises ConfigError."""
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"prefix-cache-retention-interval: expected a number of tokens, 0 or none, got {text!r}"
        )
    return int(text)


def _read_group(text: str, default_size: int) -> KvGroup:
    kind, *rest = text.split(":")
    mode = rest.pop(0) if kind == "mamba" and rest else ""
    reach = rest.pop(0) if kind in ("window", "local") and rest else ""
    size = rest.pop(0) if rest else str(default_size)
    match kind:
        case "full" if _is_number(size) and not rest:
            return KvGroup("full", int(size))
        case "window" | "local" if _is_number(reach) and _is_number(size) and not rest:
            return KvGroup(kind, int(size), int(reach))
        case "mamba" if _is_number(size) and not rest and mode in _MODES:
            return KvGroup("mamba", int(size), mode=_MODES[mode])
    raise ConfigError(
        f"kv-groups: {text!r}: expected one of {GRAMMAR}, with whole numbers of tokens from 1 on; "
        "write groups with commas between them"
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def _one_of(values: Iterable[int]) -> str:
    return " or ".join(str(value) for value in sorted(values))
