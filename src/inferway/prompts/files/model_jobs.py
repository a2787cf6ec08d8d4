"""Jobs of helper processes with a model's files: all that loading them does, and long texts; and
those of the process of an `OutsideEncoder`, which encodes texts and decodes ids.

Standard errors are answered as such; a fault that ends the process is known by its end.
"""

from __future__ import annotations

import contextlib

import fastokens
import msgspec
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

import inferway.prompts.chat.template_jobs  # noqa: F401  it imports what templates make Jinja import
from inferway.errors import InferwayError, RenderError
from inferway.model import Reason
from inferway.prompts.files.model_processes import TrialFault
from inferway.prompts.files.raw_files import RawFiles
from inferway.prompts.freed_memory import give_back_memory
from inferway.prompts.loaded_model import load_model
from inferway.prompts.tokenizer.tokenizer import Tokenizer

# An expression that tries every way to part a run of equal characters takes minutes for these.
_RUNS = [20_000 * run for run in ("a", "A", "0", ".", " ", "\n", "é", "中", "aA", " \n")]


def _start_threads() -> None:
    """Both libraries start theirs with their first work, and fastokens more of them with the first
    long text for a regex of the file's own; later that is not allowed any more."""
    vocabulary = {"a": 0, "b": 1, "ab": 2, " ": 3}
    small = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    small.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(" ?[ab]+"), "isolated")
    small.encode_batch_fast(["ab", "a"])
    with contextlib.suppress(ValueError):
        fast = fastokens.Tokenizer.from_json_str(small.to_str())
        fast.encode_batch_flat(["ab", "a"])
        fast.encode_batch_flat([200_000 * " ab"])


_start_threads()


def load(argument: bytearray) -> bytes:
    """Load a model and try it; return a TrialFault, or None if all went well."""
    try:
        model = load_model(msgspec.msgpack.decode(argument, type=RawFiles))
        for text in _RUNS:
            model.tokenizer.encode(text, add_special_tokens=False)
    except InferwayError as e:
        _raise_if_out_of_memory(e)
        reason = e.reason if isinstance(e, RenderError) else Reason.BAD_TOKENIZER
        return msgspec.msgpack.encode(TrialFault(str(e)[:1000], reason))
    return msgspec.msgpack.encode(None)


def _raise_if_out_of_memory(e: BaseException) -> None:
    cause: BaseException | None = e
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise MemoryError from None
        cause = cause.__cause__ or cause.__context__


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
    """Return the bytes of the ids and of their offsets. The text stands behind a byte that is 1 to
    add special tokens."""
    [ids, offsets] = _TOKENIZER[0].encode_with_offsets(
        argument[1:].decode(), add_special_tokens=bool(argument[0])
    )
    return msgspec.msgpack.encode((ids.tobytes(), offsets.tobytes()))


def decode(argument: bytearray) -> bytes:
    """Return the ids' text. They stand behind a byte that is 1 to leave out special tokens."""
    ids = np.frombuffer(argument, dtype=np.uint32, offset=1)
    return _TOKENIZER[0].decode(ids, skip_special_tokens=bool(argument[0])).encode()
