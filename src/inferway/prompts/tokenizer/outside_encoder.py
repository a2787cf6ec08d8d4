"""A tokenizer in a process of its own, with limits for each text.

For a tokenizer with a regex that may take longer than in proportion to a text (`regexes.py`): here
it would keep the event loop, or the GIL, for as long as it takes. Who calls waits without either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from inferway.errors import (
    JobFailedError,
    PanicError,
    RenderError,
    SandboxBusyError,
    SandboxError,
)
from inferway.model import Offsets, Reason, TokenIds
from inferway.prompts.files.raw_files import RawFiles
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox, SandboxStats

# Hugging Face's encoder needs a second and 70 MB for a million characters of ordinary text. To kill
# the process earlier gains nothing: loading the model again takes as long.
LIMITS = Limits(memory_bytes=2 << 30, cpu_seconds=5, wall_seconds=20, result_bytes=256 << 20)

MAX_WAITING = 4
# For one text; after that it goes by load, and the process has it to itself.
PATIENCE_SECONDS = 4.0

_JOBS = "inferway.prompts.tokenizer.encode_jobs"


class OutsideEncoder:
    """Encodes one model's texts in a process of its own. Any thread may call it once the model is
    loaded. The owner must call `close`."""

    def __init__(
        self, raw: RawFiles, stats: SandboxStats | None = None, limits: Limits = LIMITS
    ) -> None:
        """`stats` as of a Helper."""
        self._path = raw.path
        self.helper = Sandbox(
            _JOBS,
            limits=limits,
            max_waiting=MAX_WAITING,
            keep_spare=False,
            prepare=(f"{_JOBS}:prepare", msgspec.msgpack.encode(raw)),
            stats=stats,
        )
        self._loading = self.helper.start()  # written by whoever finds it done, and no process

    def wait_until_loaded(self) -> None:
        """Wait until the process has loaded the model. Raises RenderError if it cannot."""
        with self._errors():
            self._loading.result()

    def close(self) -> None:
        self.helper.close()

    def encode(self, text: str) -> TokenIds:
        """Return the ids of `text` without special tokens around it. Raises UnicodeEncodeError,
        PanicError, or RenderError if the text takes too long; its reason is `helper-busy` while the
        model is loaded again."""
        argument = text.encode()
        with self._errors():
            return np.frombuffer(self._call("encode", argument), dtype=np.uint32)

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[TokenIds, Offsets]:
        """Return the ids of `text` and the [start, end) of each in characters. Raises as `encode`
        does."""
        argument = bytes([add_special_tokens]) + text.encode()
        with self._errors():
            answer = self._call("encode_with_offsets", argument)
            ids, offsets = msgspec.msgpack.decode(answer, type=tuple[bytes, bytes])
            places = np.frombuffer(offsets, dtype=np.uint32).reshape(-1, 2)
            return np.frombuffer(ids, dtype=np.uint32), places

    def decode(self, ids: TokenIds | Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `ids`. Raises PanicError or RenderError."""
        argument = bytes([skip_special_tokens]) + np.asarray(ids, dtype=np.uint32).tobytes()
        with self._errors():
            return self._call("decode", argument).decode()

    def _call(self, function: str, argument: bytes) -> bytes:
        if not self.helper.is_ready:
            if self._loading.done():
                self._loading = self.helper.start()
            raise SandboxBusyError("it is loading the model again")
        job = self.helper.submit(f"{_JOBS}:{function}", argument)
        try:
            return job.result(PATIENCE_SECONDS)
        except TimeoutError:
            job.cancel()
            raise SandboxBusyError(f"no answer in {PATIENCE_SECONDS:g} s") from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the process, or what it says, means for a text."""
        try:
            yield
        except JobFailedError as e:  # its tokenizer fails where ours would have panicked
            raise PanicError(str(e)) from e
        except SandboxError as e:
            raise self._error(str(e), Reason.HELPER_BUSY) from e
        except (ValueError, msgspec.MsgspecError) as e:
            raise self._error("its answer cannot be read", Reason.BAD_TOKENIZER) from e

    def _error(self, words: str, reason: Reason) -> RenderError:
        why = f"{self._path}: the helper process has not encoded the text: {words}"
        return RenderError(why, reason=reason)
