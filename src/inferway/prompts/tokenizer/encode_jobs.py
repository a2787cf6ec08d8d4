"""What the helper process of an `OutsideEncoder` does: one model's texts -> ids, and back."""

from __future__ import annotations

import msgspec
import numpy as np

import inferway.prompts.files.trial_jobs  # noqa: F401  it starts the libraries' threads while it can
from inferway.prompts.files.raw_files import RawFiles
from inferway.prompts.freed_memory import give_back_memory
from inferway.prompts.loaded_model import load_model
from inferway.prompts.tokenizer.tokenizer import Tokenizer

# The one of this process, put there by `prepare` before its first job.
_TOKENIZER: list[Tokenizer] = []


def prepare(argument: bytes) -> None:
    """Loads the model, whose files have passed a trial."""
    tokenizer = load_model(msgspec.msgpack.decode(argument, type=RawFiles)).tokenizer
    tokenizer.encode_with_offsets("a", add_special_tokens=False)  # unpacks what it needs
    _TOKENIZER.append(tokenizer)
    give_back_memory()


def encode(argument: bytearray) -> bytes:
    """Return the ids of a text, without special tokens around it, packed as bytes."""
    return _TOKENIZER[0].encode(argument.decode(), add_special_tokens=False).tobytes()


def encode_with_offsets(argument: bytearray) -> bytes:
    """The text, behind a byte that says whether with special tokens -> the ids' bytes, and those
    of the offsets."""
    [ids, offsets] = _TOKENIZER[0].encode_with_offsets(
        argument[1:].decode(), add_special_tokens=bool(argument[0])
    )
    return msgspec.msgpack.encode((ids.tobytes(), offsets.tobytes()))


def decode(argument: bytearray) -> bytes:
    """Ids, behind a byte that says whether without special tokens."""
    ids = np.frombuffer(argument, dtype=np.uint32, offset=1)
    return _TOKENIZER[0].decode(ids, skip_special_tokens=bool(argument[0])).encode()
