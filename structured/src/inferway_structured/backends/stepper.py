"""A process in which a grammar's steps can be killed: it holds one answer's grammar.

It begins as a process with the library and a vocabulary; a copy of it compiles a spec, and each
answer has a copy of that. Each call is `Conversation.do`, whose limits hold for one step; what an
answer may use in all is counted here.
"""

from __future__ import annotations

import json
import struct
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferway_structured.backends.answer_state import TOO_LONG_IN_ALL
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import Backend, Compiled, Grammar

MODULE = __name__

# What an answer may use of CPU time: so much, and so much more for each of its tokens. A step of
# most grammars takes less than a tenth of the second; the first few take more.
ANSWER_SECONDS = 1.0
TOKEN_SECONDS = 0.002

# What a step leads to: its own result, whether the end of the answer was accepted, the CPU seconds
# of all steps so far, and how many bytes of the rest say why it has failed; after them there may be
# a mask.
STEP = struct.Struct("!I?dH")


class _Prepared(NamedTuple):
    vocabulary: Vocabulary
    backend: Backend


class _SteppedAnswer:
    """An answer, in the one process that steps it."""

    def __init__(self, grammar: Grammar, num_words: int) -> None:
        import numpy as np

        self.grammar = grammar
        self.row = np.zeros(num_words, np.int32)
        self.num_tokens = 0
        self.cpu_seconds = 0.0
        self._over = ""

    @property
    def failure(self) -> str:
        return self._over or self.grammar.failure or ""

    def spend(self) -> None:
        """CPU time, of the whole process: it has nothing else to do."""
        self.cpu_seconds = time.process_time()
        most = ANSWER_SECONDS + TOKEN_SECONDS * self.num_tokens
        if self.cpu_seconds > most and not self.grammar.terminated:
            self._over = TOO_LONG_IN_ALL


# This process's own.
_prepared: list[_Prepared] = []
_compiled: list[Compiled] = []
_answers: list[_SteppedAnswer] = []


def written(backend: str, text: str, size: int, eos_token_ids: Sequence[int]) -> bytes:
    """Return the argument of `prepare`."""
    return json.dumps([backend, text, size, list(eos_token_ids)]).encode()


def prepare(argument: bytes) -> None:
    """Import all that a grammar will need; later there may be no memory for that."""
    import numpy as np

    from inferway_structured.backends.llguidance import LLGuidance
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.backends.xgrammar import XGrammar

    name, text, size, eos_token_ids = json.loads(argument)
    vocabulary = Vocabulary(text, size=size, eos_token_ids=tuple(eos_token_ids))
    _ = vocabulary.special_tokens
    make: Callable[[Vocabulary], Backend] = LLGuidance if name == LLGuidance.name else XGrammar
    backend = make(vocabulary)
    _prepared[:] = [_Prepared(vocabulary, backend)]
    # what the library imports when it is first used
    grammar = backend.compile(Spec(Kind.GRAMMAR, 'root ::= "a"')).start()
    grammar.fill(np.zeros(vocabulary.num_words, np.int32))


def compile_spec(argument: bytes | bytearray) -> bytes:
    """Compile a packed spec. Return why it is refused, or the bytes of memory that this process now
    shares with no other."""
    given = json.loads(argument)
    unenforced = [Unenforced(**each) for each in given["unenforced"]]
    try:
        _compiled[:] = [_prepared[0].backend.compile(unpacked(given), unenforced)]
    except SpecError as e:
        return json.dumps({"refused": [str(e), e.place, e.keyword]}).encode()
    return json.dumps({"bytes": _private_bytes()}).encode()


def _private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def start(argument: bytes | bytearray) -> bytes:
    """Begin an answer; the argument is the tokens that end it."""
    stops = frozenset(array("i", bytes(argument)))
    grammar = _compiled[0].start(stops)
    _answers[:] = [_SteppedAnswer(grammar, _prepared[0].vocabulary.num_words)]
    return b""


def accept(argument: bytes | bytearray) -> bytes:
    answer, tokens = _answers[0], array("i", bytes(argument))
    accepted = answer.grammar.accept(tokens)
    answer.num_tokens += len(tokens)
    answer.spend()
    return _stepped(int(accepted))


def validate(argument: bytes | bytearray) -> bytes:
    return _stepped(_answers[0].grammar.validate(array("i", bytes(argument))))


def rollback(argument: bytes | bytearray) -> bytes:
    _answers[0].grammar.rollback(int.from_bytes(argument))
    return _stepped(0)


def fill(_: bytes | bytearray) -> bytes:
    answer = _answers[0]
    answer.grammar.fill(answer.row)
    answer.spend()
    return _stepped(0) + answer.row.tobytes()


def _stepped(result: int) -> bytes:
    answer = _answers[0]
    why = answer.failure.encode()
    return STEP.pack(result, answer.grammar.terminated, answer.cpu_seconds, len(why)) + why
