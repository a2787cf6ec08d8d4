"""Verdicts on disk, for the next start: a shape that was judged before costs a look-up then, too.

A row of SQLite's for each spec, by its key. Another version of a library, or of ours, begins anew.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from contextlib import closing
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from inferway_structured.errors import SpecError
from inferway_structured.grammar import Verdict, found_in, told

log = logging.getLogger("inferway.structured")

MAX_BYTES = 16 << 20  # of the file
_MAX_ROW_BYTES = 16 << 10
_LIBRARIES = ("inferway-structured", "llguidance", "jsonschema_rs")
_TABLES = """
CREATE TABLE IF NOT EXISTS made (by TEXT);
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, found TEXT, seen REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_time ON verdicts (seen);
"""


class VerdictStore:
    """Any thread and any number of processes may use the same file. Nothing here raises: where the
    file cannot be read or written, nothing is kept, and the log says so once."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: of the file; what was found longest ago goes first."""
        self._path = path
        self._max_bytes = max_bytes
        self._has_failed = False

    def load(self, most: int) -> list[tuple[str, Verdict | SpecError]]:
        """Return the verdicts that were kept last, by the keys of their specs, the newest last."""
        if not self._path.exists():
            return []
        try:
            with closing(self._opened()) as db:
                rows = db.execute(
                    "SELECT key, found FROM verdicts ORDER BY seen DESC LIMIT ?", (most,)
                ).fetchall()
            return [(key, found_in(json.loads(found))) for key, found in reversed(rows)]
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as e:
            self._fail(e)
            return []

    def put(self, key: str, found: Verdict | SpecError) -> None:
        """Keep a verdict. Takes some milliseconds."""
        text = json.dumps(told(found))
        if len(text) > _MAX_ROW_BYTES:
            return
        try:
            with closing(self._opened()) as db, db:
                row = (key, text, time.time())
                db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", row)
                self._make_room(db)
        except (sqlite3.Error, OSError) as e:
            self._fail(e)

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # it has clients' names
        db = sqlite3.connect(self._path, timeout=1.0)
        db.execute("PRAGMA synchronous = OFF")  # after a power cut, it may be found anew
        db.execute("PRAGMA auto_vacuum = FULL")
        db.executescript(_TABLES)
        by = _made_by(_LIBRARIES)
        if db.execute("SELECT by FROM made").fetchall() != [(by,)]:
            with db:
                db.execute("DELETE FROM verdicts")
                db.execute("DELETE FROM made")
                db.execute("INSERT INTO made VALUES (?)", (by,))
        return db

    def _make_room(self, db: sqlite3.Connection) -> None:
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        (num_pages,) = db.execute("PRAGMA page_count").fetchone()
        if num_pages * page_bytes > self._max_bytes:
            (num,) = db.execute("SELECT count(*) FROM verdicts").fetchone()
            db.execute(
                "DELETE FROM verdicts WHERE key IN"
                " (SELECT key FROM verdicts ORDER BY seen LIMIT ?)",
                (max(num // 8, 1),),
            )

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            text = "verdicts on shapes are not kept for the next start: %s: %s: %s"
            log.warning(text, self._path, type(error).__name__, error)


@cache
def _made_by(libraries: tuple[str, ...]) -> str:
    return " ".join(map(_version, libraries))


def _version(library: str) -> str:
    try:
        return f"{library}={version(library)}"
    except PackageNotFoundError:
        return f"{library}=none"
