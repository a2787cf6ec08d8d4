"""The directory of `--state-dir`: who may use it, and the journals of all holders in it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from pathlib import Path

import numpy as np

from inferway.config import ServeSettings
from inferway.errors import ConfigError
from inferway.fleet.engine import Engine
from inferway.fleet.event_source import EventSource
from inferway.fleet.journal.compaction import Compactor
from inferway.fleet.journal.journal import COMPACT_MIN_BYTES, HolderJournal, Workers
from inferway.fleet.journal.journal_files import Identity, directory_name
from inferway.fleet.journal.writer import Writer
from inferway.kv.blocks.keys import BlockHasher
from inferway.model import Endpoint

_LOCK = "lock"
_LOCK_SECONDS = 10.0


class StateDir:
    """`open`, then `journal` for each holder, then `close`. Without a path there are none."""

    def __init__(self, path: Path | None, *, compact_min_bytes: int = COMPACT_MIN_BYTES) -> None:
        self.journals: dict[Endpoint, HolderJournal] = {}  # the last one of each
        self._path = path
        self._compact_min_bytes = compact_min_bytes
        self._lock: int | None = None
        self._workers: Workers | None = None
        self._directories: dict[str, threading.Lock] = {}

    @classmethod
    def of(cls, settings: ServeSettings) -> StateDir:
        """Return the directory that settings name."""
        return cls(None if settings.state_dir is None else Path(settings.state_dir))

    def open(self) -> None:
        """Lock the directory, and start what writes there. Raises ConfigError if we may not write
        there, or another gateway does."""
        if self._path is None:
            return
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self._path, os.W_OK | os.X_OK):
                raise PermissionError(13, "permission denied")
            self._lock = _locked(self._path / _LOCK)
        except OSError as e:
            why = (e.strerror or str(e)).lower()
            raise ConfigError(
                f"state_dir {str(self._path)!r}: cannot be written: {why}; make it a directory "
                "of the gateway's user, or leave it out"
            ) from e
        self._workers = Workers(Writer(), Compactor(), asyncio.Lock(), self._compact_min_bytes)
        self._workers.writer.start()
        self._workers.compactor.start()

    def journal(
        self, engine: Engine, source: EventSource, endpoint: Endpoint
    ) -> HolderJournal | None:
        """Return the journal of one subscriber; the one before it of that endpoint has been closed.
        None without a directory, and for an engine without a replay socket: nothing could ever
        prove what was kept of it."""
        if self._path is None or self._workers is None or source.replay is None:
            return None
        name = endpoint.name
        model = engine.base_models[0].root or "" if engine.base_models else ""
        lock = self._directories.setdefault(name, threading.Lock())
        journal = self.journals[endpoint] = HolderJournal(
            self._path / directory_name(name),
            Identity(name, model, _sample_key()),
            self._workers,
            lock,
        )
        return journal

    async def close(self) -> None:
        """Close what writes there, after the journals, and unlock the directory. It may be called
        twice."""
        if self._workers is not None:
            for journal in self.journals.values():
                await journal.close()
            await self._workers.writer.close()
            await asyncio.to_thread(self._workers.compactor.close)
            self._workers = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path) -> int:
    """The open file. Held by whoever has it open; a crash lets go of it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + _LOCK_SECONDS
    while not _has_locked(file):
        owner = os.pread(file, 20, 0).decode(errors="replace").strip()
        if _is_alive(owner) or time.monotonic() > end:
            os.close(file)
            raise ConfigError(
                f"state_dir {str(path.parent)!r}: the gateway with process id {owner} uses it; "
                "give each gateway a directory of its own"
            )
        time.sleep(0.01)  # it was killed, and processes that it has started will let go, too
    os.ftruncate(file, 0)
    os.write(file, b"%d\n" % os.getpid())
    return file


def _has_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(owner: str) -> bool:
    try:
        os.kill(int(owner), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:
        return True  # it is not ours
    return True


def _sample_key() -> str:
    """Another one when keys are made in another way, or with another seed."""
    [key] = BlockHasher(16).keys(np.arange(16, dtype=np.uint32))
    return f"{key:016x}"
