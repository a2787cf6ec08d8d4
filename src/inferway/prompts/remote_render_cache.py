"""A cache of prompts that engines have rendered, reused whole or as the start of a longer chat.

Rule 1: a rendering is kept under a digest of everything that may shape it: the messages in order
and every other field of the body, but for those in `_SHAPELESS`. The tenant's `cache_salt` is one
of them: it changes no token, but how fast an answer comes would tell one tenant what another has
sent.
Rule 2: and of the quarter of an hour in which it was asked for. vLLM's own renderers write
today's date (gpt-oss, in the engine's time zone), and every zone's midnight is at a quarter. A
renderer that writes the time of day is up to a quarter of an hour late. What is asked for close to
a quarter's border is not kept: the engine's clock may be on the other side of it.
Rule 3: the digest of a chat is made message by message, so those of its earlier turns are known.
But an earlier rendering is the longer one's start only so far: it ends with the prompt for an
answer, its last tokens may merge with what follows, and a model's earlier thoughts may be dropped
when the next turn comes (gpt-oss, Qwen). How far is learned whenever a rendering arrives whose
earlier turns are known: by the worst of the last `REMEMBERED` of its kind, less `MARGIN`. Nothing
is trusted of a kind that has not been seen.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from inferway.errors import RenderError
from inferway.model import Reason, TokenIds
from inferway.openai_api.requests import PromptBody
from inferway.prompts.fidelity import first_difference

QUARTER_SECONDS = 900
BORDER_SECONDS = 5  # by how much an engine's clock may be wrong

MARGIN = 8  # tokens
REMEMBERED = 32
COMPARED = 4  # earlier turns of one chat, the longest
OVERHEAD_BYTES = 500  # of an entry, beside its ids

# Fields that shape no prompt of their own. max_tokens has a say in how much of a prompt is kept.
_SHAPELESS = {
    *("model", "messages", "stream", "echo", "kv_transfer_params", "vllm_xargs"),
    *("logprobs", "prompt_logprobs", "use_beam_search", "n"),
}
_LENGTHS = {"max_tokens", "max_completion_tokens"}
_UNSENT = {"cache_salt"}

_ROLES = {"system", "developer", "user", "assistant", "tool"}

# What sets apart how two renderings of one chat differ: who spoke last in the shorter one, and
# whether the user has spoken since.
Kind = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class RenderKey:
    """A prompt that an engine is asked for. `digests[k - 1]` is that of its first k messages; a
    completion has one. `roles` are those of the messages."""

    body: PromptBody
    pieces: Sequence[bytes]  # the body as JSON but for the model: fields, then messages
    fields: frozenset[str]  # the names of all that it has
    digests: Sequence[bytes]
    roles: Sequence[str]
    cut: bool  # whether the start of the prompt may be cut off

    @property
    def path(self) -> str:
        return self.body.path

    @property
    def key(self) -> bytes:
        return self.digests[-1]

    def raw(self, model: str) -> bytes:
        """Return the body's JSON, for an engine that serves the model by this name."""
        named = b'{"model":' + msgspec.json.encode(model)
        fields, *messages = self.pieces
        if messages:
            return named + fields + b',"messages":[' + b",".join(messages) + b"]}"
        return named + fields + b"}"


def asked_for(body: PromptBody, now: float) -> RenderKey:
    """`now` is the time of day, in seconds since 1970. Raises RenderError for a body with values
    that would not arrive as they are."""
    fields = _shaping_fields(body)
    sent = {name: value for name, value in fields.items() if name not in _UNSENT}
    pieces = [b"," + _encoded(sent)[1:-1] if sent else b""]
    quarter = int(now // QUARTER_SECONDS)
    hasher = hashlib.blake2b(digest_size=16)
    # JSON has no zero bytes, so nothing can be moved from one piece to the next.
    hasher.update(_encoded([body.path, quarter, fields]) + b"\0")
    digests = []
    messages = body.turns or ()
    for message in messages:
        piece = _encoded(message)
        pieces.append(piece)
        hasher.update(piece + b"\0")
        digests.append(hasher.digest())
    return RenderKey(
        body=body,
        pieces=pieces,
        fields=frozenset(fields) | ({"messages"} if messages else set()),
        digests=digests or [hasher.digest()],
        roles=[_role(message.get("role")) for message in messages],
        cut=body.truncate_prompt_tokens is not None,
    )


def _encoded(value: object) -> bytes:
    """JSON from which an engine reads the same. Raises RenderError where it would read another
    value: msgspec writes NaN and Infinity as null, and knows no other text than Unicode."""
    try:
        raw = msgspec.json.encode(value)
        if b"null" in raw:
            json.dumps(value, allow_nan=False)
    except ValueError as e:  # half of a surrogate pair, or NaN
        raise RenderError(
            "the body has values that standard JSON has no words for; no engine renders it for us",
            reason=Reason.REMOTE_FAILED,
        ) from e
    return raw


def may_be_kept(asked_at: float) -> bool:
    """Return whether it is certain in which quarter of an hour the engine has rendered a prompt
    that it was asked for at this time."""
    into = asked_at % QUARTER_SECONDS
    return BORDER_SECONDS <= into <= QUARTER_SECONDS - BORDER_SECONDS


def _shaping_fields(body: PromptBody) -> dict[str, Any]:
    found = {name: getattr(body, name) for name in body.__struct_fields__}
    dropped = _SHAPELESS if body.truncate_prompt_tokens is not None else _SHAPELESS | _LENGTHS
    return {n: value for n, value in found.items() if value is not None and n not in dropped}


def _role(role: object) -> str:
    """Of those that clients think of themselves there may be any number."""
    return role if isinstance(role, str) and role in _ROLES else "other"


@dataclass(slots=True)
class RemoteRenderCache:
    """The prompts of one model that engines have rendered. Above `max_bytes` the least recently
    used ones are dropped."""

    max_bytes: int
    num_bytes: int = 0
    _entries: OrderedDict[bytes, Sequence[TokenIds]] = field(default_factory=OrderedDict)
    _deficits: dict[Kind, deque[int]] = field(default_factory=dict)  # in tokens

    def clear(self) -> None:
        """Forget all prompts."""
        self._entries.clear()
        self._deficits.clear()
        self.num_bytes = 0

    def get(self, asked: RenderKey) -> Sequence[TokenIds] | None:
        """Return the whole rendering; None if it is not in the cache."""
        found = self._entries.get(asked.key)
        if found is not None:
            self._entries.move_to_end(asked.key)
        return found

    def start_of(self, asked: RenderKey, roles: Sequence[str] | None = None) -> TokenIds | None:
        """The longest start that the rendering of an earlier turn gives; None if there is none.
        With `roles`: of a chat that goes on after what is asked for, and has these."""
        best: TokenIds | None = None
        roles = asked.roles if roles is None else [_role(role) for role in roles]
        for length, ids in self._known_turns(asked, len(roles) - 1):
            deficits = self._deficits.get(_kind(roles, length))
            if deficits:
                end = len(ids) - max(deficits) - MARGIN
                if end > (0 if best is None else len(best)):
                    best = ids[:end]
        return best

    def put(self, asked: RenderKey, prompts: Sequence[TokenIds], *, keep: bool = True) -> None:
        """A rendering has come: it is compared with those of its earlier turns, and kept."""
        for length, ids in self._known_turns(asked, len(asked.roles) - 1):
            self._learn(_kind(asked.roles, length), ids, prompts[0])
        size = OVERHEAD_BYTES + sum(ids.nbytes for ids in prompts)
        if not keep or size > self.max_bytes:
            return
        self._drop(asked.key)
        self._entries[asked.key] = prompts
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def _known_turns(self, asked: RenderKey, most: int) -> list[tuple[int, TokenIds]]:
        """(number of messages, ids) of the longest turns of at most so many that are known."""
        found: list[tuple[int, TokenIds]] = []
        if asked.cut:
            return found
        for length in range(min(most, len(asked.roles)), 0, -1):
            prompts = self._entries.get(asked.digests[length - 1])
            if prompts is not None:
                found.append((length, prompts[0]))
                if len(found) == COMPARED:
                    break
        return found

    def _learn(self, kind: Kind, shorter: TokenIds, longer: TokenIds) -> None:
        common = common_start(shorter, longer)
        deficits = self._deficits.setdefault(kind, deque(maxlen=REMEMBERED))
        deficits.append(len(shorter) - common)

    def _drop(self, key: bytes) -> None:
        prompts = self._entries.pop(key, None)
        if prompts is not None:
            self.num_bytes -= OVERHEAD_BYTES + sum(ids.nbytes for ids in prompts)


def common_start(a: TokenIds, b: TokenIds) -> int:
    """Return how many tokens both prompts begin with."""
    place = first_difference(a, b)
    return len(a) if place is None else place


def _kind(roles: Sequence[str], length: int) -> Kind:
    return roles[length - 1], "user" in roles[length:]


def as_ids(ids: Sequence[int]) -> TokenIds:
    """Raises OverflowError for what is no token id. Shared from here on, hence read-only."""
    made = np.array(ids, dtype=np.uint32)
    made.setflags(write=False)
    return made
