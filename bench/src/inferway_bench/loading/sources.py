"""Where sessions come from: generated chats, files of conversations or bodies, traces.

Each stage of a run gets sessions of its own, so that no rate profits from what the rate before has
left in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inferway_bench.loading.datasets import read_dataset
from inferway_bench.loading.generated import ChatSpec, generated_chats
from inferway_bench.loading.traced import shortened, traced
from inferway_bench.loading.workload import Session
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.traces import FILES, read_trace, stored
from inferway_bench.processes import BenchError

_STAGE_SEED = 1_000_003  # apart from each other's sessions


@dataclass(frozen=True, slots=True)
class Source:
    """`sessions` of a stage, of a trace at a rate of requests a second or (None) at its own; all
    others have no times and no end."""

    about: str
    sessions: Callable[[int, float | None], Iterator[Session]]
    own_rate: float | None = None  # of a trace: requests a second
    num_sessions: int | None = None  # of a file: those beyond are the same again


def generated(spec: ChatSpec, seed: int, tag: str = "") -> Source:
    """Return the source of generated chats. With another `tag` they have other words, so that no
    cache of an earlier run knows them."""
    return Source(
        spec.about, lambda stage, _: generated_chats(spec, seed * _STAGE_SEED + stage, tag)
    )


def dataset_file(given: str, data: Path) -> Path:
    """Return `given` if it is a file, else the trace or the chats of `data` with this short name:
    that of `FILES`, or the name of a file in `chat/` without its endings. Raises BenchError."""
    path = Path(given)
    if path.exists() and not path.is_dir():
        return path
    named = {name: stored(data / "traces", name) for name in FILES}
    named |= {
        file.name.partition(".")[0]: file for file in sorted((data / "chat").glob("*.jsonl*"))
    }
    if given not in named:
        raise BenchError(
            f"{given!r}: there is no such file, and no installed data of this name; expected the "
            f"path of a file, or one of {', '.join(named)}"
        )
    return named[given]


def of_file(
    path: Path,
    seed: int,
    *,
    output_tokens: tuple[int, int] | None = None,
    given_answers: bool = True,
    force_length: bool = True,
    most_tokens: int | None = None,
    tag: str = "",
) -> Source:
    """Return the source of a trace, of conversations or of bodies; its first line shows which.
    `most_tokens` leaves out what a trace has of longer prompts, `tag` changes its words. Raises
    BenchError."""
    try:
        trace: Workload | None = read_trace(path, seed)
    except (BenchError, OSError):
        trace = None  # what it is then is said by who reads it next
    if trace is not None:
        short = trace if most_tokens is None else shortened(trace, most_tokens)
        return _of_trace(short, seed, tag, force_length)
    dataset = read_dataset(path)
    if most_tokens is not None:
        raise BenchError(f"--max-prompt-tokens {most_tokens}: {path} is not a trace")
    shaped = dataset.shaped(seed, output_tokens, given_answers, force_length)
    return Source(
        dataset.about,
        lambda stage, _: shaped.endless(seed, stage),
        num_sessions=len(dataset.sessions),
    )


def _of_trace(trace: Workload, seed: int, tag: str, force_length: bool) -> Source:
    def sessions(stage: int, rate: float | None) -> Iterator[Session]:
        at = trace.starts(rate or trace.own_rate, seed)
        return traced(trace, at, f"{seed * _STAGE_SEED + stage} {tag}", force_length)

    about = f"{trace.about}; generated text of the same lengths and shared prefixes"
    return Source(about, sessions, trace.own_rate)
