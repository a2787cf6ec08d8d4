"""An engine's /metrics -> how busy it is. Reads only the lines we use: the page is large.

Of vLLM's ranks each has its own samples, under `engine="N"`: N is the rank counted over all nodes
(v1/metrics/loggers.py), as /kv_event_sources counts them. SGLang's and TensorRT-LLM's names: field
notes, 3.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import isfinite

import msgspec

from inferway.model import SCRAPED, Adapters

# Requests that have had their first token, and those that have ended: histograms' counts.
_FIRSTS = (
    "vllm:time_to_first_token_seconds_count",
    "sglang:time_to_first_token_seconds_count",
    "trtllm_time_to_first_token_seconds_count",
)
_ENDED = (
    "vllm:e2e_request_latency_seconds_count",
    "sglang:e2e_request_latency_seconds_count",
    "trtllm_e2e_request_latency_seconds_count",
)
# Tokens that were computed: they move with each step that brings any.
_GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
_LORA = "vllm:lora_requests_info"  # has no sample until an adapter is used
_SLEEP = "vllm:engine_sleep_state"
_WEIGHTS = (
    "vllm:rl_weight_update_operation_duration_seconds_count"  # has no sample until there is one
)
_ALL = (
    *chain.from_iterable(each.metrics for each in SCRAPED.values()),
    *_FIRSTS,
    *_ENDED,
    *_GENERATED,
    _SLEEP,
)

MAX_SAMPLES = 4096  # of one name; there is one a rank
MAX_ADAPTER_SAMPLES = 16384  # one for each set of adapters that ever ran together
MAX_LINE = 256 * 1024  # thousands of adapters' names

_RANK = re.compile(r'[{,](?:engine|dp_rank)="(\d{1,9})"')
_AWAKE = 'sleep_state="awake"'
_ENDS_UPDATE = 'operation="update"'
_LABEL = re.compile(r'[{,](max_lora|running_lora_adapters|waiting_lora_adapters)="([^"]*)"')


class RankLoad(msgspec.Struct, frozen=True):
    """The load of one data-parallel rank."""

    figures: Mapping[str, float] = {}
    answering: float | None = None  # requests that had their first token, but for those that ended

    def __getitem__(self, name: str) -> float:
        """Return the figure of that column; 0 if the engine does not tell it."""
        return self.figures.get(name, 0.0)


class Load(RankLoad, frozen=True):
    """The load of an engine: figures summed over its data-parallel ranks, or their mean."""

    adapters: Adapters = Adapters()  # vLLM tells them of all ranks together
    ranks: Mapping[int, RankLoad] = {}  # by number; empty if the engine does not tell them apart
    generated: float | None = None  # tokens, since it started; None: it does not tell
    is_asleep: bool = False
    has_dropped_cache: bool = False  # it sleeps so deeply that it has
    weight_updates: float = 0.0  # that have ended, since it started

    @property
    def computed(self) -> tuple[float | None, ...]:
        """Figures of which one changes whenever the engine has computed something. How many
        requests wait is none of them: an API server may count those that its core does not know."""
        return self.generated, self.answering, self["kv_usage"]

    def of(self, rank: int | None, ranks: int) -> RankLoad:
        """Return what `rank` has to do, of an engine that has so many: as told, else its share."""
        told = self.ranks.get(rank) if rank is not None else None
        if told is not None:
            return told
        shares = {
            name: self[name] if figure.is_share else self[name] / ranks
            for name, figure in SCRAPED.items()
        }
        return RankLoad(shares, None if self.answering is None else self.answering / ranks)


def load_names(metrics: str) -> tuple[str, ...]:
    """Return which metrics of such a page `parse_load` reads, or will read; none if none of them is
    there."""
    told = tuple(name for name in _ALL if _first_sample(metrics, name) != -1)
    return (*told, _LORA, _WEIGHTS) if any(name.startswith("vllm:") for name in told) else told


Sample = tuple[str, float]  # labels, with their brace; value


def parse_load(metrics: str) -> Load:
    """Return the load that a page of metrics tells. Absent metrics count as zero: an engine that
    does not tell is not thereby busy."""
    told = {name: samples(metrics, figure.metrics) for name, figure in SCRAPED.items()}
    firsts, ended = samples(metrics, _FIRSTS), samples(metrics, _ENDED)
    generated = samples(metrics, _GENERATED)
    figures = {}
    for name, found in told.items():
        total = sum([value for _, value in found])
        figures[name] = total / max(1, len(found)) if SCRAPED[name].is_share else total
    return Load(
        figures,
        _answering(firsts, ended),
        _adapters(metrics),
        _by_rank(told, firsts, ended) if max(map(len, told.values())) > 1 else {},
        sum([value for _, value in generated]) if generated else None,
        *_sleep(metrics),
        sum([value for labels, value in samples(metrics, (_WEIGHTS,)) if _ENDS_UPDATE in labels]),
    )


def _sleep(metrics: str) -> tuple[bool, bool]:
    """Return whether the engine sleeps, and whether it has dropped its cache for that: from level 1
    on it has (v1/engine/core.py, sleep)."""
    told = samples(metrics, (_SLEEP,))
    is_asleep = any(not value for labels, value in told if _AWAKE in labels)
    return is_asleep, any(value for labels, value in told if _AWAKE not in labels)


def _by_rank(
    told: Mapping[str, Sequence[Sample]], firsts: Sequence[Sample], ended: Sequence[Sample]
) -> dict[int, RankLoad]:
    """Empty if the samples do not tell them apart."""
    figures = {name: _ranked(found) for name, found in told.items()}
    ranks, *others = [set(ranked) for ranked in figures.values()]
    if any(other != ranks for other in others):
        return {}
    begun, over = _ranked(firsts), _ranked(ended)
    answering = {rank: begun[rank] - over[rank] for rank in ranks & begun.keys() & over.keys()}
    return {
        rank: RankLoad(
            {name: ranked[rank] for name, ranked in figures.items()}, answering.get(rank)
        )
        for rank in ranks
    }


def _answering(firsts: Sequence[Sample], ended: Sequence[Sample]) -> float | None:
    if not firsts or not ended:
        return None
    return sum([value for _, value in firsts]) - sum([value for _, value in ended])


def _ranked(samples: Sequence[Sample]) -> dict[int, float]:
    """Empty if one does not say its rank, or two say the same."""
    found = [(_RANK.search(labels), value) for labels, value in samples]
    by_rank = {int(rank[1]): value for rank, value in found if rank is not None}
    return by_rank if len(by_rank) == len(samples) else {}


def _adapters(metrics: str) -> Adapters:
    """Each change makes a new sample, whose value is when: the last one is true."""
    found = samples(metrics, (_LORA,), MAX_ADAPTER_SAMPLES)
    if not found or len(found) == MAX_ADAPTER_SAMPLES:  # the true one may be behind
        return Adapters()
    labels, _ = max(found, key=lambda sample: sample[1])
    told = dict(_LABEL.findall(labels))
    most = told.get("max_lora", "")
    return Adapters(
        running=_names(told.get("running_lora_adapters", "")),
        waiting=_names(told.get("waiting_lora_adapters", "")),
        most=int(most) if most.isdecimal() else 0,
    )


def _names(joined: str) -> frozenset[str]:
    return frozenset(name for name in joined.split(",") if name)


def samples(metrics: str, names: Sequence[str], most: int = MAX_SAMPLES) -> list[Sample]:
    """Return the samples of the first of `names` that has any: those of its first `most` lines, but
    for lines of more than MAX_LINE characters. Samples of a name stand together: what comes behind
    them is not looked at."""
    for name in names:
        at = _first_sample(metrics, name)
        if at != -1:
            return _run_of_samples(metrics, name, at, most)
    return []


def _first_sample(metrics: str, name: str) -> int:
    """Where its line begins; -1 if there is none."""
    if name not in metrics:  # which most are not
        return -1
    if metrics.startswith((f"{name}{{", f"{name} ")):
        return 0
    found = [at for mark in "{ " if (at := metrics.find(f"\n{name}{mark}")) != -1]
    return min(found) + 1 if found else -1


def _run_of_samples(metrics: str, name: str, at: int, most: int) -> list[Sample]:
    found: list[Sample] = []
    for _ in range(most):
        if not metrics.startswith((f"{name}{{", f"{name} "), at):
            break
        end = metrics.find("\n", at)
        end = end if end != -1 else len(metrics)
        if end - at <= MAX_LINE:
            labels, _, rest = metrics[at + len(name) : end].rpartition("}")
            value = _number(rest)
            if value is not None:
                found.append((labels, value))
        at = end + 1
    return found


def _number(rest: str) -> float | None:
    """What stands behind the labels: a value, and maybe a time. None if it is no number."""
    with suppress(ValueError, IndexError):
        value = float(rest.split()[0])
        if isfinite(value):
            return value
    return None
