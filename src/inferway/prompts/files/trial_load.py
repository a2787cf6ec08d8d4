"""A model's files -> whether this process may load them: one that can be killed does it first.

A tokenizer.json of a few kilobytes can make its library ask for all memory, run for hours or abort
the process, and no `except` sees any of these. So what nobody vouches for is loaded by a helper
first, whole, with limits that go by the size of the files; what it survives, we do.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import msgspec

from inferway.errors import JobKilledError, RenderError, SandboxError
from inferway.model import Reason
from inferway.prompts.files.raw_files import RawFiles
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox, SandboxStats

LOAD = "inferway.prompts.files.trial_jobs:load"

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
            "inferway.prompts.files.trial_jobs",
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
