"""`--heal`: engines whose caches are known in part are asked to report what they reuse.

A request with `vllm_xargs: {"kv_cache_report_mode": "full"}` makes vLLM publish, when it looks its
prompt up, one more BlockStored for the blocks that it finds in its cache, from the prompt's start
on (v1/core/kv_cache_manager.py, get_computed_blocks). Older versions than 0.26 ignore it.

The report has the form of a store, so that copies of a block cannot be told from reports of it. So
with `--heal` no copies are counted, of any engine, from before its first event on: any removal
removes the block (`EngineBlocks.count_no_copies`). The first events may be a replay of what was
reported to the gateway before us, or to another one beside us.

Not asked: engines whose past we know from the start (what is missing there is not lost history),
and those with sliding windows or other groups beside full attention: vLLM 0.32 reports the window
groups' blocks from the prompt's start on as well, though it has dropped most of them.
"""

from __future__ import annotations

import re
from typing import Protocol

from inferway.fleet.engine import Engine
from inferway.model import Endpoint, HolderId

FIRST_VERSION = (0, 26)  # of vLLM; its 0.25.0 does not know the mode (pull request 45261)

_VERSION = re.compile(r"(\d+)\.(\d+)")


class CountsCopies(Protocol):
    """An event stream, or its `EngineBlocks`."""

    def count_no_copies(self) -> None: ...


class FullReporter:
    """`share` of the requests that could tell something new are edited, at most one at a time for
    each endpoint. `fleet.Fleet` asks; `num_asked` is everybody's to read."""

    def __init__(self, share: float) -> None:
        self.num_asked: dict[HolderId, int] = {}
        self._share = share
        self._credit: dict[HolderId, float] = {}
        self._asked: set[HolderId] = set()  # a request is on its way

    def attend(self, stream: CountsCopies) -> None:
        """Prepare an engine's stream, before anything of it is applied."""
        if self._share:
            stream.count_no_copies()

    def ask(self, engine: Engine, endpoint: Endpoint) -> bool:
        """Return whether a request that goes there now is to be edited. Call `asked` when it has
        ended."""
        holder = endpoint.holder
        if not self._share or holder in self._asked:
            return False
        stream, version = engine.stream(endpoint), engine.facts.version if engine.facts else None
        if stream is None or not stream.may_report or not knows_the_mode(version):
            return False
        credit = self._credit.get(holder, 1 - self._share) + self._share
        is_due = credit > 1 - 1e-9
        self._credit[holder] = credit - 1 if is_due else credit
        if not is_due:
            return False
        self._asked.add(holder)
        self.num_asked[holder] = self.num_asked.get(holder, 0) + 1
        return True

    def asked(self, endpoint: Endpoint) -> None:
        self._asked.discard(endpoint.holder)


def knows_the_mode(version: str | None) -> bool:
    """Return whether an engine of this version, as its /version says, has the report mode."""
    match = _VERSION.match(version or "")
    return match is not None and (int(match[1]), int(match[2])) >= FIRST_VERSION
