"""Traffic that keeps caches from being used (GET /admin/traffic): which clients' requests go by
load, where and why, and what breaks the prompts of conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from inferway.extension import EndedAnswer, Extension, Snapshot
from inferway.model import Reason
from inferway.openai_api.kinds import KINDS
from inferway.telemetry.added_up import added_up
from inferway.telemetry.clients import AGENT_BYTES, OTHER, family
from inferway.telemetry.conversations import Conversations

_BY_LOAD = frozenset(reason for reason in Reason if reason.is_by_load)
_PATHS = frozenset(KINDS)  # all others are one


@dataclass(slots=True)
class TrafficCounts(Extension):
    """The counters of what keeps caches unused: an extension, one for the process,
    that keeps numbers, words of our own, and paths that we know."""

    name: ClassVar[str] = "traffic"

    by_load: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    by_prompt: int = 0
    conversations: Conversations = field(default_factory=Conversations)
    _others: Sequence[dict[str, Any]] = ()  # what other processes have told last

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        """Count how the requests of the answers were decided."""
        for answer in answers:
            record = answer.record
            if record is None or not record.reason:
                continue
            if record.reason not in _BY_LOAD:
                self.by_prompt += 1
                continue
            path = answer.path if answer.path in _PATHS else OTHER
            client = family(answer.user_agent[:AGENT_BYTES])
            self.by_load[path, client, record.reason] += 1

    def told(self) -> dict[str, Any]:
        """Return what is known so far, of all processes that serve together."""
        return added_up([self.own(), *self._others], same=("path", "client", "reason", "cause"))

    def snapshot(self, since: int) -> Snapshot:  # noqa: ARG002
        return Snapshot(msgspec.msgpack.encode(self.own()))

    def merge(self, parts: Sequence[bytes]) -> None:
        self._others = [msgspec.msgpack.decode(part) for part in parts]

    def own(self) -> dict[str, Any]:
        """Return what this process knows."""
        return {
            "by_prompt": self.by_prompt,
            "by_load": [
                {"path": path, "client": client, "reason": reason, "requests": number}
                for (path, client, reason), number in self.by_load.most_common()
            ],
            "conversations": self.conversations.told(),
        }
