"""Processes that can be killed, for a model's files and texts.

A tokenizer.json of a few kilobytes can make its library ask for all memory, run for hours or abort
the process, and no `except` sees any of these. So what nobody vouches for is loaded by a helper
first, whole, with limits that go by the size of the files; what it survives, we do. Where a regex
may take longer than in proportion to a text (`tokenizer_bounds.py`), a process encodes: here it
would keep the event loop, or the GIL, for as long as it takes. Who calls waits without either.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import msgspec
import numpy as np

from inferway.errors import (
    JobFailedError,
    JobKilledError,
    PanicError,
    RenderError,
    SandboxBusyError,
    SandboxError,
)
from inferway.model import Offsets, Reason, TokenIds
from inferway.prompts.files.raw_files import RawFiles
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox, SandboxStats

LOAD = "inferway.prompts.files.model_jobs:load"

# Measured: 0.5 GiB of address space and 4 s of CPU for Qwen 3 (11 MB), 0.35 GiB for 3.5 MB.
BASE_BYTES, BYTES_PER_BYTE = 640 << 20, 32
# For files of any size: a gateway that loads what has passed may come to use as much. Measured:
# 0.8 GiB for Gemma 3 (33 MB, 262k tokens), 0.85 GiB for its vocabulary doubled.
MAX_BYTES = 2 << 30
BASE_CPU_SECONDS, CPU_SECONDS_PER_MIB = 10.0, 1.5
WALL_SECONDS = 300.0  # it gets what CPU time others leave

MAX_REMEMBERED = 64


class TrialFault(msgspec.Struct, frozen=True):
    """The error that ended a load, told also where there was no trial."""

    why: str
    reason: str


_FAULTS = msgspec.msgpack.Decoder(TrialFault | None)


def limits_for(num_bytes: int) -> Limits:
    """Return the limits of a trial for files of so many bytes."""
    return Limits(
        memory_bytes=min(BASE_BYTES + BYTES_PER_BYTE * num_bytes, MAX_BYTES),
        cpu_seconds=BASE_CPU_SECONDS + CPU_SECONDS_PER_MIB * (num_bytes >> 20),
        wall_seconds=WALL_SECONDS,
        result_bytes=1 << 20,
    )


class TrialLoads:
    """Loads models' files in a process that can be killed, before this process loads them. Any
    thread may ask. Failures are remembered by the files' content, because a model that cannot be
    loaded is asked for again and again."""

    def __init__(self, limits: Callable[[int], Limits] = limits_for) -> None:
        self.stats = SandboxStats()  # of all its processes
        self._limits = limits
        self._lock = Lock()  # one at a time: memory for one is what a machine must have
        self._failed: OrderedDict[bytes, RenderError] = OrderedDict()
        self._running: Sandbox | None = None
        self._closed = False

    def close(self) -> None:
        self._closed = True
        running = self._running
        if running is not None:
            running.close()

    def check(self, raw: RawFiles) -> None:
        """Raises RenderError: these files must not be loaded here."""
        packed = msgspec.msgpack.encode(raw)
        key = hashlib.sha256(packed).digest()
        with self._lock:
            known = self._failed.get(key)
            if known is not None:
                raise RenderError(str(known), reason=known.reason)
            try:
                self._try(raw, packed)
            except RenderError as e:
                if e.reason != Reason.HELPER_BUSY:
                    self._failed[key] = e
                    if len(self._failed) > MAX_REMEMBERED:
                        self._failed.popitem(last=False)
                raise

    def _try(self, raw: RawFiles, packed: bytes) -> None:
        helper = self._running = Sandbox(
            "inferway.prompts.files.model_jobs",
            limits=self._limits(raw.num_bytes),
            keep_spare=False,
            stats=self.stats,
        )
        try:
            if self._closed:
                raise SandboxError("the renderer is closed")
            fault = _FAULTS.decode(helper.call(LOAD, packed))
        except SandboxError as e:
            busy = not isinstance(e, JobKilledError) or e.lacked_cpu
            raise RenderError(
                f"{raw.directory}: the model's files are not loaded: the process that tried it {e}",
                reason=Reason.HELPER_BUSY if busy else Reason.BAD_TOKENIZER,
            ) from e
        finally:
            self._running = None
            helper.close()
        if fault is not None:
            raise RenderError(fault.why, reason=fault.reason)


# Hugging Face's encoder needs a second and 70 MB for a million characters of ordinary text. To kill
# the process earlier gains nothing: loading the model again takes as long.
LIMITS = Limits(memory_bytes=2 << 30, cpu_seconds=5, wall_seconds=20, result_bytes=256 << 20)

MAX_WAITING = 4
# For one text; after that it goes by load, and the process has it to itself.
PATIENCE_SECONDS = 4.0

_JOBS = "inferway.prompts.files.model_jobs"


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
