"""The engines and the chats of `inferway bench peers`.

Chats are for a fleet that is short of memory: drawn with a seed, the same for every router.
Sessions share a few system prompts and grow turn by turn, all of them side by side, so that an
engine sees many others between two turns of one. What the assistant said is part of the workload
and not what the engine answered: every router gets the same bytes, in the same order, at the same
intended times, whatever it did before. So of earlier turns only the prompts are reused.

The words are drawn with a tag of the run, so that nothing of one run is left in any cache or tree
of prefixes at the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import msgspec

from inferway_bench.loading import generated
from inferway_bench.loading.generated import (
    Session,
    Turn,
    first_times,
    generated_chats,
    interleaved,
    poisson,
)


class ChatSpec(msgspec.Struct, frozen=True):
    """The shape of chats. Lengths are in tokens."""

    sessions: int = 40
    turns: int = 5  # of each session
    systems: int = 4  # prompts that sessions share
    system_tokens: int = 400
    message_tokens: tuple[int, int] = (90, 260)  # least and most, evenly
    answer_tokens: int = 12
    apart: int = 10  # requests of others, at least, between two turns of a session

    @property
    def requests(self) -> int:
        return self.sessions * self.turns


class SimulatedEngines(msgspec.Struct, frozen=True, tag="simulated"):
    """`inferway simulate`, several of them: an engine that takes its time and no CPU."""

    engines: int = 8
    block_size: int = 32
    blocks: int = 320
    prefill_us_per_token: float = 500.0
    inter_token_ms: float = 20.0
    max_num_seqs: int = 32
    time_factor_under_load: float = 2.0

    @property
    def about(self) -> str:
        """The number of engines and what they do, in words."""
        return (
            f"{self.engines} simulated engines, each with {self.blocks} blocks of "
            f"{self.block_size} tokens; {self.prefill_us_per_token:g} µs for each prompt token "
            f"that is not cached, one prompt at a time; {self.inter_token_ms:g} ms for each token "
            f"of an answer, {self.time_factor_under_load:g} × that with {self.max_num_seqs} "
            "requests at once"
        )

    def flags(self) -> list[str]:
        """Return the flags of `inferway simulate`."""
        return [
            *("--block-size", str(self.block_size), "--kv-cache-size", str(self.blocks)),
            *("--prefill-time-per-token", f"{self.prefill_us_per_token:g}us"),
            *("--prefill-in-turn", "--inter-token-latency", f"{self.inter_token_ms:g}ms"),
            *("--max-num-seqs", str(self.max_num_seqs), "--max-model-len", "4096"),
            *("--time-factor-under-load", f"{self.time_factor_under_load:g}"),
        ]


class RealEngines(msgspec.Struct, frozen=True, tag="real"):
    """vLLM on the CPU with SmolLM2-135M, a core each."""

    engines: int = 2
    block_size: int = 32  # tokens; vLLM's CPU kernels are made for multiples of it
    blocks: int = 512
    dtype: str = "auto"  # the model's own, bfloat16
    layers: int | None = None  # of the model's shape, with weights that mean nothing; None: all

    @property
    def about(self) -> str:
        """The number of engines and what they compute, in words."""
        model, dtype = "SmolLM2-135M", "" if self.dtype == "auto" else f" in {self.dtype}"
        if self.layers is not None:
            model = f"{self.layers} layer{'s' * (self.layers > 1)} of {model}'s shape"
        return (
            f"{self.engines} engines of vLLM on the CPU with {model}{dtype}, one thread each, "
            f"--num-gpu-blocks-override {self.blocks}, blocks of {self.block_size} tokens"
        )

    def flags(self) -> list[str]:
        """Return the flags of `vllm serve`."""
        fewer = json.dumps({"num_hidden_layers": self.layers})
        return [
            *([] if self.layers is None else ["--hf-overrides", fewer, "--load-format", "dummy"]),
            *("--enforce-eager", "--enable-prompt-tokens-details", "--max-model-len", "4096"),
            *("--block-size", str(self.block_size)),
            *("--num-gpu-blocks-override", str(self.blocks), "--dtype", self.dtype),
        ]


class Scenario(msgspec.Struct, frozen=True):
    """The engines behind the routers, and the chats that are sent to them."""

    engines: SimulatedEngines | RealEngines
    chats: ChatSpec
    warm_up_requests: int  # before each router is measured
    # requests a second at which the mean TTFT of round-robin is twice that of an idle fleet
    rate: float

    @property
    def about(self) -> str:
        """The engines and chats, in two sentences."""
        chats = self.chats
        return (
            f"{self.engines.about}. Each load, router and seed has {chats.sessions} chats of "
            f"{chats.turns} turns with {chats.systems} system prompts, in all {chats.requests} "
            f"requests with {chats.answer_tokens} tokens an answer, and begins with empty caches."
        )


SIMULATED = Scenario(
    SimulatedEngines(),
    # eight engines hold 82,000 tokens; the chats of one run are about as many
    ChatSpec(sessions=96, turns=5, systems=8, system_tokens=250, apart=24),
    warm_up_requests=80,
    rate=25.0,  # whatever the machine: the engines take set times
)
REAL = Scenario(
    RealEngines(),
    # two engines hold 32,700 tokens; the chats of one run are nearly twice as many
    ChatSpec(turns=4, system_tokens=150, message_tokens=(250, 570), answer_tokens=4),
    warm_up_requests=16,
    rate=3.44,  # with two layers on an EPYC of 2026-11-22; elsewhere --rate
)


def chats(
    spec: ChatSpec, seed: int, tag: str, rate: float, most: int | None = None
) -> list[Session]:
    """Return sessions in the order of their first turns, for `rate` requests a second: a Poisson
    process, each time another session's turn. Seed and spec decide all but the words, which are
    those of the tag, and how fast it goes. `most` keeps only the first requests of all."""
    kind = generated.ChatSpec(
        spec.systems,
        spec.system_tokens,
        (spec.turns, spec.turns),
        spec.message_tokens,
        (spec.answer_tokens, spec.answer_tokens),
        given_answers=True,
    )
    times = first_times(poisson(rate, seed), seconds=None, count=spec.requests)
    made = islice(generated_chats(kind, seed, tag), spec.sessions)
    sent = interleaved(made, times[:most], 2 * spec.apart, seed)
    return [replace(each, turns=_named(each.turns, f"{tag}-{each.number}")) for each in sent]


def _named(turns: Sequence[Turn], name: str) -> list[Turn]:
    """The turns with the session's name where vllm-router's consistent_hash looks for it: it does
    not look at OpenAI's `user`, and engines ignore the field."""
    more = {"session_params": {"session_id": name}, "temperature": 0}
    return [replace(turn, fields={**turn.fields, **more}) for turn in turns]
