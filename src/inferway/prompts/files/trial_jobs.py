"""What the helper process does with a model's files: all that loading them does, and long texts.

Standard errors are answered as such; what ends the process is known by its end.
"""

from __future__ import annotations

import contextlib

import fastokens
import msgspec
import tokenizers
from tokenizers import models, pre_tokenizers

from inferway.errors import InferwayError, RenderError
from inferway.model import Reason
from inferway.prompts.files.raw_files import RawFiles
from inferway.prompts.files.trial_load import TrialFault
from inferway.prompts.loaded_model import load_model

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
    """A TrialFault, or None if all went well."""
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
