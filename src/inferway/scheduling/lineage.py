"""Sessions of agents' turns that name none, found by the messages that they repeat.

An agent sends all messages of its last turn again, and those that have come since. So a turn goes
on with the session whose last turn had exactly its first messages; the most of them, where there
are several. Who has tools is an agent: other chats are of no session.

messages of turns, in order     session
S, U                            one
S, U, A, T                      one
S, U, B, T                      two: nobody's last turn is S, U any more
S, U, A, T, A2, T2              one
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from inferway.openai_api.llm_request import LLMRequest

MOST_SESSIONS = 20_000  # beyond, the one whose last turn is the longest ago is new when it returns

_MARK = "cache_control"  # that clients of Anthropic's put elsewhere with each turn


@dataclass(slots=True)
class Lineage:
    """The last turns of sessions, by a digest of their messages: 16 bytes each."""

    most: int = MOST_SESSIONS
    _names: OrderedDict[bytes, bytes] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._names)

    def session(self, request: LLMRequest) -> bytes:
        """Return the name of the request's session, which this is the last turn of from now on,
        unless it is hypothetical; b"" if it is no agent's."""
        digests = list(_digests(request))
        if not digests:
            return b""
        known = next((each for each in reversed(digests) if each in self._names), None)
        last = digests[-1]
        name = last.hex().encode() if known is None else self._names[known]
        if request.is_hypothetical:
            return name
        if known is not None:
            del self._names[known]
        self._names[last] = name
        if len(self._names) > self.most:
            self._names.popitem(last=False)
        return name


def _digests(request: LLMRequest) -> Iterator[bytes]:
    """Yield a digest of the first message, of the first two, and so on: of one model and tenant."""
    messages = request.body.repeated_turns if request.body.tools else ()
    hashed = blake2b(msgspec.json.encode([request.target_model, request.tenant]), digest_size=16)
    has_marks = _MARK.encode() in request.raw
    for message in messages:
        hashed.update(msgspec.json.encode(_without_marks(message) if has_marks else message))
        yield hashed.digest()


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_marks(each) for name, each in value.items() if name != _MARK}
    return [_without_marks(each) for each in value] if isinstance(value, list) else value
