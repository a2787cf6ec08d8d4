"""The silent-zero alarm: traffic works, nothing hits, and somebody must say so.

A third of all complaints about KV-aware routing are of this kind (field notes, section 6).
The alarm counts requests that could have matched; after `PATIENCE` of them in a row without
one match it gives one warning with the likeliest cause, from evidence, and stays quiet until
a match has come or the cause has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.fleet.stream_figures import StreamEvidence
from inferway.model import TokenIds

PATIENCE = 50  # requests in a row
REMEMBERED_FIRST_KEYS = 10_000


@dataclass(slots=True)
class SilentZeroAlarm:
    """The alarm of one model. `observe` returns a warning when it is due, else None."""

    model: str
    misses: int = 0  # in a row, of requests with at least one full block
    short: int = 0  # in a row, of requests with none
    last_cause: str | None = None
    _first_keys: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _repeats: int = 0  # missed requests whose first block had been asked for before
    _first_prompt: TokenIds | None = None

    def matched(self) -> None:
        """A request has matched somewhere: all is well, and the count starts again."""
        self.misses = self.short = self._repeats = 0
        self.last_cause = None

    def observe(
        self,
        *,
        prompt_blocks: int,
        first_key: int | None,
        first_tokens: TokenIds | None,
        streams: Callable[[], Sequence[StreamEvidence]],
    ) -> str | None:
        """A request has matched nowhere. `first_key` and `first_tokens` are those of its first
        full block, if it has one; `streams` is asked only when a warning may be due."""
        if prompt_blocks == 0:
            self.short += 1
            return self._short(streams()) if self.short == PATIENCE else None
        self.short = 0
        self.misses += 1
        self._first_prompt = first_tokens
        if first_key is not None:
            self._remember(first_key)
        return self._missed(streams()) if self.misses % PATIENCE == 0 else None

    def _remember(self, first_key: int) -> None:
        if first_key in self._first_keys:
            self._repeats += 1
            return
        if len(self._first_keys) >= REMEMBERED_FIRST_KEYS:
            self._first_keys.popitem(last=False)
        self._first_keys[first_key] = None

    def _short(self, streams: Sequence[StreamEvidence]) -> str | None:
        sizes = sorted({s.block_size for s in streams if s.block_size is not None})
        return self._once(
            "prompts too short",
            f"the last {PATIENCE} prompts fill no block of {' or '.join(map(str, sizes))} tokens, "
            "and engines cache full blocks only; a smaller --block-size at the engines would help",
        )

    def _missed(self, streams: Sequence[StreamEvidence]) -> str | None:
        cause, evidence = self._likeliest(streams)
        return self._once(cause, evidence)

    def _once(self, cause: str, evidence: str) -> str | None:
        if cause == self.last_cause:
            return None
        self.last_cause = cause
        return f"model {self.model!r}: nothing hits. Likely cause: {cause}. {evidence}"

    def _likeliest(self, streams: Sequence[StreamEvidence]) -> tuple[str, str]:
        """The first rule that the evidence supports; from what is certain to what is guessed."""
        n = self.misses
        if not any(s.connected for s in streams):
            return "no events", (
                f"{n} requests, and no engine has an event socket: start the engines with "
                "--kv-events-config, or give --engine URL,events=tcp://HOST:PORT"
            )
        if not any(s.batches for s in streams):
            return "no events", (
                f"{n} requests, and not one message on {_names(streams)}: is it the right port, "
                "does a firewall stand between, is prefix caching on?"
            )
        if not any(s.stored_blocks for s in streams):
            return self._nothing_stored(streams)
        for s in streams:
            if s.block_size_seen and s.block_size != s.block_size_seen:
                return "block size", (
                    f"keys are computed over {s.block_size} tokens, {s.engine} caches blocks of "
                    f"{s.block_size_seen}; drop block_size=, or correct it"
                )
        if not self._repeats:
            return "prompts share no first block", (
                f"{n} requests, and no two began with the same block: there is nothing to reuse"
            )
        return self._template(streams)

    def _nothing_stored(self, streams: Sequence[StreamEvidence]) -> tuple[str, str]:
        if any(s.skipped for s in streams):
            return "event form", (
                f"{sum(s.skipped for s in streams)} events came and none could be used; see "
                "inferway_events_skipped_total for the reasons"
            )
        topics = sorted({s.topic for s in streams if s.topic is not None})
        return "topic", (
            f"messages come on {topics!r} but none stores a block: is another program, or "
            "another model's engine, publishing there?"
        )

    def _template(self, streams: Sequence[StreamEvidence]) -> tuple[str, str]:
        """Tokens that the engines store are never those we expect: compare the first blocks."""
        common = [_common(self._first_prompt, s.first_tokens) for s in streams]
        best = max((length for length in common if length is not None), default=None)
        if best is None:
            return "model name", (
                "the engines store blocks, none of them begins a prompt: are they of an adapter "
                "or of another model than the one asked for?"
            )
        return "template", (
            f"our first block and the engines' agree in {best} tokens, then differ: another "
            "chat template, tokenizer or default there? See what the probe says in /ready"
        )


def _common(ours: TokenIds | None, theirs: TokenIds | None) -> int | None:
    if ours is None or theirs is None:
        return None
    length = min(len(ours), len(theirs))
    differs = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differs[0]) if len(differs) else length


def _names(streams: Sequence[StreamEvidence]) -> str:
    return ", ".join(s.engine for s in streams)
