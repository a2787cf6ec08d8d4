"""An engine's /metrics -> how busy it is. Reads only the lines we use: the page is large."""

from __future__ import annotations

from dataclasses import dataclass

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # older name last


@dataclass(frozen=True, slots=True)
class Load:
    """Summed over an engine's data-parallel ranks; `kv_usage` is their mean, 0..1."""

    running: float
    waiting: float
    kv_usage: float


def parse_load(metrics: str) -> Load:
    """Absent metrics count as zero: an engine that does not tell is not thereby busy."""
    usage = next((values for name in _KV_USAGE if (values := _values(metrics, name))), [0.0])
    return Load(
        running=sum(_values(metrics, _RUNNING)),
        waiting=sum(_values(metrics, _WAITING)),
        kv_usage=sum(usage) / len(usage),
    )


def _values(metrics: str, name: str) -> list[float]:
    """The values of all samples of `name`, found without splitting the page into lines."""
    values = []
    at = metrics.find(name)
    while at != -1:
        end = metrics.find("\n", at)
        line = metrics[at : end if end != -1 else len(metrics)]
        is_sample = at == 0 or metrics[at - 1] == "\n"
        if is_sample and line[len(name) : len(name) + 1] in ("{", " "):
            values.append(float(line.rsplit("}", 1)[-1].removeprefix(name).split()[0]))
        at = metrics.find(name, at + len(name))
    return values
