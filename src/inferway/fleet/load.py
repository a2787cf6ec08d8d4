"""An engine's /metrics -> how busy it is. Reads only the lines we use: the page is large.

Of vLLM's ranks each has its own samples, under `engine="N"`: N is the rank counted over all nodes
(v1/metrics/loggers.py), as /kv_event_sources counts them. SGLang's and TensorRT-LLM's names: field
notes, 3.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite

import msgspec

from inferway.model import Adapters

# The first name that has samples counts.
_RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "trtllm_num_requests_running",
)
_WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "trtllm_num_requests_waiting",
)
_KV_USAGE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # vLLM's older name
    "sglang:token_usage",
    "trtllm_kv_cache_utilization",
)
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
_LORA = "vllm:lora_requests_info"  # has no sample until an adapter is used
_ALL = (*_RUNNING, *_WAITING, *_KV_USAGE, *_FIRSTS, *_ENDED)

MAX_SAMPLES = 4096  # of one name; there is one a rank
MAX_ADAPTER_SAMPLES = 16384  # one for each set of adapters that ever ran together
MAX_LINE = 256 * 1024  # thousands of adapters' names

_RANK = re.compile(r'[{,](?:engine|dp_rank)="(\d{1,9})"')
_LABEL = re.compile(r'[{,](max_lora|running_lora_adapters|waiting_lora_adapters)="([^"]*)"')


class RankLoad(msgspec.Struct, frozen=True):
    """Of one data-parallel rank."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0  # 0..1
    answering: float | None = None  # requests that had their first token, but for those that ended


class Load(msgspec.Struct, frozen=True):
    """Summed over an engine's data-parallel ranks; `kv_usage` is their mean, 0..1."""

    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    answering: float | None = None  # as RankLoad's
    adapters: Adapters = Adapters()  # vLLM tells them of all ranks together
    ranks: Mapping[int, RankLoad] = {}  # by number; empty if the engine does not tell them apart

    def of(self, rank: int | None, ranks: int) -> RankLoad:
        """What `rank` has to do, of an engine that has so many: as told, else its share."""
        told = self.ranks.get(rank) if rank is not None else None
        if told is not None:
            return told
        return RankLoad(
            self.running / ranks,
            self.waiting / ranks,
            self.kv_usage,
            None if self.answering is None else self.answering / ranks,
        )


def load_names(metrics: str) -> tuple[str, ...]:
    """What of such a page `parse_load` reads, or will; empty if none of it is there."""
    told = tuple(name for name in _ALL if _first_sample(metrics, name) != -1)
    return (*told, _LORA) if any(name.startswith("vllm:") for name in told) else told


def parse_load(metrics: str) -> Load:
    """Absent metrics count as zero: an engine that does not tell is not thereby busy."""
    running, waiting = samples(metrics, _RUNNING), samples(metrics, _WAITING)
    usage = samples(metrics, _KV_USAGE)
    firsts, ended = samples(metrics, _FIRSTS), samples(metrics, _ENDED)
    return Load(
        running=sum([value for _, value in running]),
        waiting=sum([value for _, value in waiting]),
        kv_usage=sum([value for _, value in usage]) / max(1, len(usage)),
        answering=_answering(firsts, ended),
        adapters=_adapters(metrics),
        ranks=_by_rank(running, waiting, usage, firsts, ended) if len(running) > 1 else {},
    )


Sample = tuple[str, float]  # labels, with their brace; value


def _by_rank(
    running: Sequence[Sample],
    waiting: Sequence[Sample],
    usage: Sequence[Sample],
    firsts: Sequence[Sample],
    ended: Sequence[Sample],
) -> dict[int, RankLoad]:
    """Empty if the samples do not tell them apart."""
    columns = [_ranked(samples) for samples in (running, waiting, usage)]
    ranks = set(columns[0])
    if any(set(column) != ranks for column in columns):
        return {}
    begun, over = _ranked(firsts), _ranked(ended)
    runs, waits, used = columns
    answering = {rank: begun[rank] - over[rank] for rank in ranks & begun.keys() & over.keys()}
    return {
        rank: RankLoad(runs[rank], waits[rank], used[rank], answering.get(rank)) for rank in ranks
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
    """Of the first of `names` that has any: those of its first `most` lines, but for lines of more
    than MAX_LINE characters. Samples of a name stand together: what comes behind them is not looked
    at."""
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
