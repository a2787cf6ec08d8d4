"""Grammars whose steps are taken where they can be killed.

A grammar that a client writes can make one step cost any time: libraries count what they make of
it only after each row of their tables, and a row may have as many entries as the answer so far,
times what the grammar has (`s: s s | "a"`: the cube of the tokens). So each answer's grammar is in
a process of its own, a copy of one that has compiled it. A step over its limits ends this process
and this answer, and nothing else. There are only so many of them at a time, so that all together
have a limit, too.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

from inferway_structured.backends import stepper
from inferway_structured.backends.answer_state import TOO_LONG, allow_only
from inferway_structured.errors import (
    CompileError,
    JobKilledError,
    SandboxError,
    SaturatedError,
    SpecError,
)
from inferway_structured.sandbox.process import Conversation, Limits, SandboxProcess
from inferway_structured.sandbox.sandbox import in_memory
from inferway_structured.spec import packed

if TYPE_CHECKING:
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow, Unenforced
    from inferway_structured.spec import Spec

_LIBRARY = Limits(memory_bytes=8 << 30, cpu_seconds=60, wall_seconds=60.0, niceness=0)
COMPILE = Limits(memory_bytes=256 << 20, cpu_seconds=2, wall_seconds=10.0)
# Nearly all grammars take nothing on top of what the library has freed: of 90 ambiguous ones, one
# took 4 MiB. Beside that, an answer writes to 2 or 3 MiB of what it shares.
STEP = Limits(memory_bytes=5 << 20, cpu_seconds=0.05, wall_seconds=5.0, result_bytes=1 << 20)
MAX_ANSWERS = 64  # at a time: 512 MiB
MAX_COMPILED_BYTES = 512 << 20  # of the grammars that are kept, or that answers follow


class Room:
    """A limit on the number of unfinished answers, and the callers that wait for one to end. Any
    thread may use it. It takes no lock, because the last reference to an answer may be dropped
    within any other call."""

    def __init__(self, num_answers: int, executor: Executor) -> None:
        """`executor` runs callers that have waited."""
        self._free = deque([None] * num_answers)
        self._waiting: deque[Callable[[], object]] = deque()
        self._executor = executor

    def enter(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def leave(self) -> None:
        self._free.append(None)
        if self._waiting:
            self._call()

    def wait(self, begin: Callable[[], object]) -> None:
        """Call `begin` once there is room. It need not enter, and may wait again."""
        self._waiting.append(begin)
        if self._free:  # an answer has left meanwhile
            self._call()

    def _call(self) -> None:
        with suppress(RuntimeError):  # the engine ends
            self._executor.submit(self._let_in)

    def _let_in(self) -> None:
        while self._free:
            try:
                begin = self._waiting.popleft()
            except IndexError:
                return
            begin()


class Steppers:
    """The processes that step the grammars of one engine: one for each library, from its first
    grammar on, and copies of it. Any thread may use it. Close it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._written = vocabulary.written
        self._lock = Lock()
        self._libraries: dict[str, SandboxProcess] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="steppers")  # they end with it
        self._room = Room(MAX_ANSWERS, self._thread)
        self._kept: WeakSet[SteppedCompiled] = WeakSet()

    def compile(
        self, backend: str, spec: Spec, unenforced: Sequence[Unenforced]
    ) -> SteppedCompiled:
        """Return the spec, compiled in a process of its own. The first time, this takes as long as
        the library takes to be imported, with the vocabulary. Raises SpecError, SaturatedError, and
        CompileError where there can be no process."""
        argument = packed(spec, unenforced=[asdict(each) for each in unenforced])
        process = self._copy(backend)
        try:
            found = json.loads(process.do(f"{stepper.MODULE}:compile_spec", argument))
        except JobKilledError as e:
            process.close()
            raise SpecError(f"compiling it {e}; simplify it") from None
        except SandboxError as e:
            process.close()
            raise CompileError(f"a grammar library failed: {e}") from None
        if "refused" in found:
            process.close()
            message, place, keyword = found["refused"]
            raise SpecError(message, place=place, keyword=keyword)
        compiled = SteppedCompiled(
            process, backend, self._written[-1], tuple(unenforced), found["bytes"], self._room
        )
        with self._lock:
            if compiled.num_bytes + sum(each.num_bytes for each in self._kept) > MAX_COMPILED_BYTES:
                process.close()
                raise SaturatedError("other grammars take too much memory; try again later")
            self._kept.add(compiled)
        return compiled

    def when_one_ends(self, begin: Callable[[], object]) -> None:
        """Call `begin` once, in another thread, when there is room for one more answer."""
        self._room.wait(begin)

    def close(self) -> None:
        """End all processes. The answers under way fail."""
        with self._lock:
            for library in self._libraries.values():
                library.close()
            self._libraries.clear()
        self._thread.shutdown()

    def _copy(self, backend: str) -> Conversation:
        """Raises CompileError. A library that has ended is started again; one that lives and
        cannot be copied now is kept, because the answers under way end with it."""
        with self._lock:
            try:
                return self._copied(backend)
            except (SandboxError, RuntimeError) as e:  # the thread has ended
                raise CompileError(f"a grammar cannot be compiled: {e}") from None

    def _copied(self, backend: str) -> Conversation:
        library = self._libraries.get(backend)
        if library is not None:
            with suppress(SandboxError):
                return library.copy(COMPILE, copied=True)
            with suppress(SandboxError):
                if library.usable:  # or it has ended while it was asked: this says so
                    return library.copy(COMPILE, copied=True)
            if library.usable:
                raise SandboxError("there can be no more processes now")
            self._libraries.pop(backend).close()
        library = self._libraries[backend] = self._thread.submit(self._start, backend).result()
        return library.copy(COMPILE, copied=True)

    def _start(self, backend: str) -> SandboxProcess:
        argument = stepper.written(backend, *self._written)
        preparation = in_memory(f"{stepper.MODULE}:prepare", argument)
        try:
            library = SandboxProcess((stepper.MODULE,), _LIBRARY, preparation, copied=True)
            try:
                library.wait_until_ready()
            except SandboxError:
                library.close()
                raise
        finally:
            os.close(preparation.fd)
        return library


class SteppedCompiled:
    """A process that is copied for each answer; it ends with the last reference to this."""

    def __init__(
        self,
        process: Conversation,
        backend: str,
        eos_token_ids: tuple[int, ...],
        unenforced: tuple[Unenforced, ...],
        num_bytes: int,
        room: Room,
    ) -> None:
        self.backend = backend
        self.num_bytes = num_bytes
        self.eos_token_ids = eos_token_ids
        self.unenforced = unenforced
        self._process = process
        self._lock = Lock()
        self._room = room

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> SteppedGrammar:
        """Raises CompileError, and SaturatedError where too many answers have processes."""
        if not self._room.enter():
            raise SaturatedError(f"{MAX_ANSWERS} answers follow grammars; try again later")
        try:
            with self._lock:
                process = self._process.copy(STEP)
            process.do(f"{stepper.MODULE}:start", _packed(stop_token_ids))
            grammar = SteppedGrammar(self, process, stop_token_ids.union(self.eos_token_ids))
        except BaseException as e:
            self._room.leave()
            if isinstance(e, SandboxError):
                raise CompileError(f"a grammar cannot be started: {e}") from None
            raise
        weakref.finalize(grammar, self._room.leave)
        return grammar


class SteppedGrammar:
    """The grammar of one answer, in a process of its own. What has killed its process has failed.
    The mask of the next token is computed there as soon as a token was accepted here, beside the
    engine's step."""

    def __init__(
        self, compiled: SteppedCompiled, process: Conversation, ends: frozenset[int]
    ) -> None:
        self._compiled = compiled  # whose process ends this one with it
        self._process = process
        self._ends = ends
        self._mask: bytes | None = None
        self._mask_comes = False
        self.failure: str | None = None
        self.terminated = False
        self.cpu_seconds = 0.0  # of its process, by the last step

    def accept(self, tokens: Sequence[int]) -> bool:
        accepted = bool(self._step(stepper.accept, _packed(tokens)))
        self._mask = None
        if accepted and not self.terminated:
            self._begin_mask()
        return accepted

    def validate(self, tokens: Sequence[int]) -> int:
        return self._step(stepper.validate, _packed(tokens))

    def rollback(self, num_tokens: int) -> None:
        self._step(stepper.rollback, num_tokens.to_bytes(4))
        self._mask = None

    def fill(self, row: MaskRow) -> None:
        if self._mask is None:
            self._begin_mask()
            self._end_mask()
        if self._mask is None or self.failure is not None:
            allow_only(row, self._ends)
        else:
            row[:] = memoryview(self._mask).cast("i")

    def forced(self) -> Sequence[int]:
        return ()  # a step for a few tokens less is worth no second call

    def _begin_mask(self) -> None:
        if not self._mask_comes:
            self._mask_comes = self._ask(stepper.fill, b"")

    def _end_mask(self) -> None:
        if self._mask_comes:
            self._mask_comes = False
            self._mask = self._answer()[1] or None

    def _step(self, function: object, argument: bytes) -> int:
        """Return what a step gives, or 0 if it has killed the process."""
        self._end_mask()
        return self._answer()[0] if self._ask(function, argument) else 0

    def _ask(self, function: object, argument: bytes) -> bool:
        """Return whether there will be an answer."""
        if self.failure is None:
            try:
                self._process.ask(f"{stepper.MODULE}:{getattr(function, '__name__', '')}", argument)
            except SandboxError:
                self._fail(TOO_LONG)
        return self.failure is None

    def _answer(self) -> tuple[int, bytes]:
        try:
            answer = self._process.answer()
        except SandboxError:
            self._fail(TOO_LONG)
            return 0, b""
        result, self.terminated, self.cpu_seconds, length = stepper.STEP.unpack_from(answer)
        rest = answer[stepper.STEP.size :]
        if length:
            self._fail(rest[:length].decode())
        return result, rest[length:]

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self._process.close()


def _packed(tokens: Sequence[int] | frozenset[int]) -> bytes:
    return array("i", tokens).tobytes()
