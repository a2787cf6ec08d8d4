"""Files of conversations or of OpenAI bodies -> sessions.

A file is JSON lines or one JSON array, packed by gzip or xz, or not packed. What an entry is shows
by its keys:

* `conversations` (ShareGPT: `from`, `value`), `messages` that end with the assistant's answer, or
  `messages` beside a `source` (the form of the installed chats): a conversation, sent turn by turn;
* other `messages`, or `prompt`: an OpenAI body, sent as it is but for what the command says;
* `body`: a line of OpenAI's batch files, its body sent so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import click
import msgspec

from inferway_bench.flags import default_data_dir, unpacked
from inferway_bench.loading.generated import Message, Session, Turn
from inferway_bench.policies.requests import FILES, stored
from inferway_bench.processes import BenchError

_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "assistant": "assistant",
}  # fmt: skip
_OURS = ("model", "stream", "stream_options")  # of a body, that the command says
_CHARS_A_TOKEN = 4  # of English, about: how long an answer of a conversation is


@dataclass(frozen=True, slots=True)
class Dataset:
    """The sessions of a file, and what it is in words."""

    about: str
    sessions: Sequence[Session]

    def endless(self, seed: int, stage: int) -> Iterator[Session]:
        """Yield the sessions in an order drawn once, each stage from another place on; after the
        last comes the first again."""
        order = list(range(len(self.sessions)))
        Random(seed).shuffle(order)
        # Golden ratio: no two stages of a run begin near each other.
        begin = int(len(order) * (stage * 0.618033988749895 % 1.0))
        for number in count():
            chosen = order[(begin + number) % len(order)]
            yield replace(self.sessions[chosen], number=number)

    def shaped(
        self,
        seed: int,
        output_tokens: tuple[int, int] | None,
        given_answers: bool,
        force_length: bool,
    ) -> Dataset:
        """Return the same with answers of `output_tokens`, drawn, or of conversations about as long
        as their own. The history keeps the file's answers, or the server's."""
        rng = Random(f"{seed} answers")

        def shape(turn: Turn) -> Turn:
            fields = dict(turn.fields)
            if output_tokens is not None:
                fields["max_tokens"] = rng.randint(*output_tokens)
            elif turn.answer is not None:
                fields["max_tokens"] = max(1, len(turn.answer) // _CHARS_A_TOKEN)
            if force_length and "max_tokens" in fields:
                fields["ignore_eos"] = True
            return replace(turn, fields=fields, answer=turn.answer if given_answers else None)

        sessions = [replace(s, turns=[shape(turn) for turn in s.turns]) for s in self.sessions]
        return replace(self, sessions=sessions)


def read_dataset(path: Path) -> Dataset:
    """Return what a file has. Raises BenchError with the place of what cannot be sent."""
    entries = _entries(path)
    sessions: list[Session] = []
    for number, entry in enumerate(entries):
        turns = _turns(entry, f"{path}: entry {number + 1}")
        if turns:
            sessions.append(Session(len(sessions), turns))
    if not sessions:
        raise BenchError(f"{path}: nothing to send; expected conversations or OpenAI bodies")
    num_turns = sum(len(session.turns) for session in sessions)
    about = f"{path.name}: {len(sessions):,} conversations or bodies, {num_turns:,} requests"
    return Dataset(about, sessions)


def dataset_file(given: str) -> Path:
    """Return `given` if it is a file, else the installed trace or chats with this short name: that
    of `FILES`, or the name of a file in `chat/` without its endings. Raises BadParameter."""
    path, data = Path(given), default_data_dir()
    if path.exists() and not path.is_dir():
        return path
    named = {name: stored(data / "traces", name) for name in FILES}
    named |= {
        file.name.partition(".")[0]: file for file in sorted((data / "chat").glob("*.jsonl*"))
    }
    if given not in named:
        raise click.BadParameter(
            f"{given!r}: there is no such file, and no installed data of this name; expected the "
            f"path of a file, or one of {', '.join(named)}"
        )
    return named[given]


def _entries(path: Path) -> Sequence[Any]:
    try:
        data = unpacked(path)
    except OSError as e:
        raise BenchError(f"{path}: cannot be read: {e}") from e
    if data.lstrip().startswith(b"["):
        return msgspec.convert(_decoded(data, str(path)), list[Any])
    lines = enumerate(data.splitlines(), start=1)
    return [_decoded(line, f"{path}: line {number}") for number, line in lines if line.strip()]


def _decoded(data: bytes, place: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as e:
        raise BenchError(f"{place}: not JSON ({e}); expected JSON lines or one JSON array") from e


def _turns(entry: Any, place: str) -> list[Turn]:
    if not isinstance(entry, dict):
        raise BenchError(f"{place}: expected a JSON object, not {type(entry).__name__}")
    if isinstance(entry.get("body"), dict):
        entry = entry["body"]
    if isinstance(entry.get("conversations"), list):
        return _conversation([_share_gpt(one, place) for one in entry["conversations"]], {})
    messages = entry.get("messages")
    if isinstance(messages, list) and messages:
        if not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
            raise BenchError(f"{place}: `messages` holds what has no `role`")
        if messages[-1]["role"] == "assistant" or "source" in entry:
            tools = {"tools": entry["tools"]} if isinstance(entry.get("tools"), list) else {}
            return _conversation(messages, tools)
    elif "prompt" not in entry:
        raise BenchError(
            f"{place}: has none of `messages`, `conversations`, `prompt` and `body`, but "
            f"{sorted(entry)[:8]}; nor is the file a trace of a format that is known"
        )
    return [Turn(fields={k: v for k, v in entry.items() if k not in _OURS})]


def _share_gpt(one: Any, place: str) -> Message:
    role = one.get("from", one.get("role")) if isinstance(one, dict) else None
    if role not in _ROLES:
        raise BenchError(
            f"{place}: `conversations` has {role!r} in `from`; allowed: {', '.join(_ROLES)}"
        )
    return {"role": _ROLES[role], "content": one.get("value", one.get("content"))}


def _conversation(messages: Sequence[Message], fields: dict[str, Any]) -> list[Turn]:
    """A turn for each answer; what comes behind the last is not asked. Calls of tools and their
    results are said again as they were, and so is a second answer in a row."""
    turns: list[Turn] = []
    new: list[Message] = []
    for message in messages:
        content = message.get("content")
        if message["role"] == "assistant" and isinstance(content, str) and content and new:
            turns.append(Turn(tuple(new), fields, answer=content))
            new = []
        else:
            new.append(message)
    return turns
