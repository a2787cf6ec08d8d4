"""The flags of `inferway simulate` for models with several KV cache groups, and for speculation.
Where vLLM has a flag of the same meaning, the name is vLLM's."""

from __future__ import annotations

from typing import Any

from inferway.cli.command import section
from inferway.cli.flag import Number, OneOf, Whole, option
from inferway_sim.kv_groups.spec import (
    KvGroups,
    SpeculativeDecoding,
    read_groups,
    read_interval,
)

groups_section = section(
    "Groups of KV cache, and speculation",
    option(
        "--kv-groups",
        default="full",
        metavar="GROUP,…",
        help="Keep the KV cache of a hybrid model with these groups of layers: full[:SIZE], "
        "window:TOKENS[:SIZE], local:CHUNK[:SIZE], mamba:align[:SIZE] or mamba:all[:SIZE]. SIZE is "
        "the block size, --block-size without it.",
    ),
    option(
        "--prefix-cache-retention-interval",
        metavar="TOKENS|none",
        default="0",
        help="Keep the windows and states at each multiple of this length, beside those where "
        "prompts end; 0 keeps the latter alone, none keeps all.",
    ),
    option(
        "--prefix-match-unit",
        type=Whole(min=1),
        metavar="TOKENS",
        help="Hash each piece of this length.  [default: the greatest that divides all blocks]",
    ),
    option(
        "--speculation",
        type=OneOf(["none", "ngram", "eagle", "mtp"]),
        default="none",
        help="Draft tokens by this method.",
    ),
    option(
        "--num-speculative-tokens",
        type=Whole(min=1),
        metavar="N",
        help="Draft this number of tokens in each step.  [default: 1 with --speculation]",
    ),
    option(
        "--speculation-acceptance",
        type=Number(min=0, max=1),
        default=0.5,
        metavar="SHARE",
        help="Accept this share of the drafted tokens.",
    ),
    option(
        "--hash-lookahead-tokens",
        type=Whole(min=0),
        default=0,
        metavar="N",
        help="Hash each block with this number of tokens after it, as vLLM 0.33 does for eagle and "
        "mtp; 0 drops the last block of each hit instead.",
    ),
    option(
        "--max-num-batched-tokens",
        type=Whole(min=1),
        default=8192,
        metavar="TOKENS",
        help="Compute at most this number of a prompt's tokens in one step.",
    ),
    option(
        "--vllm-version",
        type=OneOf(["0.32", "0.33"]),
        default="0.32",
        help="Follow the rules of this version for groups and speculation.",
    ),
    example="inferway simulate --kv-groups full,window:1024,mamba:align --speculation mtp",
)


def make_groups(flags: dict[str, Any]) -> KvGroups | None:
    """Return what the flags of this section describe; None for vLLM 0.32 with one group of full
    attention and without speculation. Raises ConfigError."""
    size, method = flags["block_size"], flags["speculation"]
    speculation = SpeculativeDecoding(
        method,
        flags["num_speculative_tokens"] or int(method != "none"),
        flags["hash_lookahead_tokens"],
        flags["speculation_acceptance"],
    )
    groups = KvGroups(
        read_groups(flags["kv_groups"], size),
        read_interval(flags["prefix_cache_retention_interval"]),
        flags["prefix_match_unit"],
        speculation,
        flags["max_num_batched_tokens"],
        flags["vllm_version"],
    )
    return None if groups == KvGroups(read_groups("full", size)) else groups
