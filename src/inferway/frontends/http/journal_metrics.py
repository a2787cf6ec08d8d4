"""What /metrics shows of the journals in `state_dir`, by engine and data-parallel rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inferway.fleet.fleet import Fleet
from inferway.fleet.journal.journal import HolderJournal, JournalProof
from inferway.frontends.http.families import Family, counter, gauge

LABELS = ["engine", "rank"]

_FIGURES: tuple[tuple[Callable[..., Family], str, str, Callable[[HolderJournal], float]], ...] = (
    (
        counter,
        "journal_batches",
        "Batches of events that were written to the engine's journal.",
        lambda j: j.stats.batches,
    ),
    (
        counter,
        "journal_bytes",
        "Bytes that were written to the engine's journal.",
        lambda j: j.stats.bytes,
    ),
    (
        gauge,
        "journal_given_up",
        "1 if the engine's journal has ended for this run because the disk is full"
        " or too slow; else 0.",
        lambda j: j.stats.given_up,
    ),
    (
        gauge,
        "journal_loaded_blocks",
        "Blocks that were loaded from the engine's journal at the start.",
        lambda j: j.stats.loaded_blocks,
    ),
    (
        gauge,
        "journal_load_seconds",
        "Seconds that loading the engine's journal took at the start.",
        lambda j: j.stats.load_seconds,
    ),
)


def journal_families(fleet: Fleet) -> Iterator[Family]:
    """The names are always the same; without `state_dir` they have no values."""
    journals: dict[tuple[str, ...], HolderJournal] = {
        (engine.name, str(stream.source.rank)): stream.journal
        for engine in fleet.engines
        for stream in engine.subscribers
        if stream.journal is not None
    }

    for kind, name, text, value in _FIGURES:
        yield kind(name, text, LABELS, {labels: value(j) for labels, j in journals.items()})
    yield counter(
        "journal_compactions",
        "Times that the engine's journal was made a snapshot, by outcome: done or failed.",
        [*LABELS, "outcome"],
        {
            (*labels, outcome): number
            for labels, journal in journals.items()
            for outcome, number in (
                ("done", journal.stats.compactions),
                ("failed", journal.stats.failed_compactions),
            )
        },
    )
    yield gauge(
        "journal_proof",
        "1 for what became of the blocks that were loaded from the engine's journal, else 0.",
        [*LABELS, "proof"],
        {
            (*labels, proof): journal.proof is proof
            for labels, journal in journals.items()
            for proof in JournalProof
        },
    )
