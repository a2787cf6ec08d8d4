"""The backend xgrammar, for what llguidance cannot say; where it is installed: beside an engine.

It raises on wrong use, has no limits on time, and a mask after the end is an error: all of that is
kept from it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from inferway_structured.backends.answer_state import AnswerState, allow_only
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.ebnf import is_ebnf

if TYPE_CHECKING:
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import MaskRow, Unenforced


@cache
def is_installed() -> bool:
    """Return whether xgrammar can be imported. The answer is remembered, because a sandboxed
    process can no longer look at files."""
    return find_spec("xgrammar") is not None


class XGrammar:
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _compiler(self) -> Any:
        import xgrammar

        # its own cache off: the caller has one, for all libraries
        return xgrammar.GrammarCompiler(
            self._vocabulary.tokenizer_info, max_threads=2, cache_enabled=False
        )

    def compile(self, spec: Spec, unenforced: Sequence[Unenforced] = ()) -> XGrammarCompiled:
        """Compile a grammar, or a tag with schemas as `xgrammar_schemas` says them. Raises
        SpecError."""
        try:
            compiled = self._compiled(spec)
        except (RuntimeError, ValueError, TypeError) as error:
            last = [line.strip() for line in str(error).splitlines() if line.strip()] or ["refused"]
            raise SpecError(last[-1][:300]) from None
        return XGrammarCompiled(compiled, self._vocabulary.eos_token_ids, tuple(unenforced))

    def _compiled(self, spec: Spec) -> Any:
        if spec.kind is Kind.STRUCTURAL_TAG:
            return self._compiler.compile_structural_tag(spec.text)
        if is_ebnf(spec.text):
            return self._compiler.compile_grammar(spec.text)
        return self._compiler.compile_lark(spec.text)


class XGrammarCompiled:
    backend = XGrammar.name

    def __init__(
        self, compiled: Any, eos_token_ids: tuple[int, ...], unenforced: tuple[Unenforced, ...]
    ) -> None:
        self.compiled = compiled
        self.eos_token_ids = eos_token_ids
        self.unenforced = unenforced
        self.num_bytes = int(compiled.memory_size_bytes)

    def start(self, stop_token_ids: frozenset[int] = frozenset()) -> XGrammarGrammar:
        return XGrammarGrammar(self, stop_token_ids)


class XGrammarGrammar(AnswerState):
    """The library is shown the end of the answer, too; what comes after it is counted here."""

    __slots__ = ("_matcher",)

    def __init__(self, compiled: XGrammarCompiled, stop_token_ids: frozenset[int]) -> None:
        import xgrammar

        super().__init__(stop_token_ids.union(compiled.eos_token_ids))
        self._matcher = xgrammar.GrammarMatcher(
            compiled.compiled, override_stop_tokens=sorted(self._ends)
        )

    @property
    def terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def _is_past_end(self, token: int) -> bool:  # noqa: ARG002
        return self.terminated

    def _goes(self, token: int) -> bool:
        try:
            return bool(self._matcher.accept_token(token))
        except RuntimeError:
            return False  # no such token

    def validate(self, tokens: Sequence[int]) -> int:
        num_valid = 0
        for token in tokens:
            if self._failure is not None or self.terminated or not self._goes(token):
                break
            num_valid += 1
        if num_valid:
            self._matcher.rollback(num_valid)
        return num_valid

    def _go_back(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def fill(self, row: MaskRow) -> None:
        if self._failure is not None or self.terminated:
            return allow_only(row, self._ends)
        import torch

        # it writes nothing where every token may come
        row[:] = -1
        try:
            self._matcher.fill_next_token_bitmask(torch.from_numpy(row.reshape(1, -1)), 0)
        except RuntimeError:
            self._failure = "the grammar library has failed"
            allow_only(row, self._ends)
        return None

    def forced(self) -> Sequence[int]:
        return ()  # it knows the text that must come, not the tokens
