"""One request whose answer is to have a shape, on its way: a producer and a follower of it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from inferway.model import Candidates, Headers, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import COMPILE_MS
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway_structured.answers import AnswerJudge
from inferway_structured.grammar import Unenforced
from inferway_structured.report import UNENFORCED_HEADER, left_free, named
from inferway_structured.spec import OutputConstraint
from inferway_structured.texts import AnswerText
from inferway_structured.turns import ANYBODY, Asker
from inferway_structured.verdicts import Verdicts

if TYPE_CHECKING:
    from inferway.routing.structured_gate.gate import Gate

UNKNOWN = Unenforced("", "unknown")  # what an engine without our plugin keeps


class Shape(RequestListener):
    """`unenforced`: by engines with our plugin; None if no engine of the model has it."""

    __slots__ = (
        "_asker",
        "_engine",
        "_gate",
        "_status",
        "_verdicts",
        "asked",
        "can_be_judged",
        "may_try",
        "unenforced",
    )

    def __init__(
        self,
        gate: Gate,
        verdicts: Verdicts,
        asked: Sequence[OutputConstraint],
        unenforced: Sequence[Unenforced] | None,
        asker: Asker = ANYBODY,
    ) -> None:
        self.asked = asked
        self.unenforced = unenforced
        self.can_be_judged = True
        # what has never been answered must not bring down one engine after the other
        self.may_try = None if all(gate.is_proven(each.spec.key) for each in asked) else 2
        self._gate = gate
        self._verdicts = verdicts
        self._asker = asker
        self._engine: str | None = None
        self._status = 0

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:  # noqa: ARG002
        """Add COMPILE_MS, if compiling its specs takes any engine long."""
        missing = self._gate.missing_ms(self.asked, candidates.endpoints)
        if missing is not None:
            candidates.add(COMPILE_MS, missing)

    def on_attempt(self, target: Target, now: float) -> Headers:
        if self._engine is not None:
            self._gate.failed(self.asked, self._engine, now)
        self._leave()
        self._engine = target.endpoint.engine
        self._gate.sent(self.asked, target.endpoint)
        return ()

    def on_head(self, status: int) -> Headers:
        self._status = status
        if status >= 400 or self._engine is None:
            return ()
        if not self._gate.has_plugin(self._engine):
            left = [left_free(each) if each.ignored else UNKNOWN for each in self.asked]
            return ((UNENFORCED_HEADER, named(list(dict.fromkeys(left)))),)
        return ((UNENFORCED_HEADER, named(self.unenforced)),) if self.unenforced else ()

    def on_end(self, ending: RequestOutcome) -> None:
        if self._engine is not None:
            if ending.outcome == "upstream_error" or self._status >= 500:
                self._gate.failed(self.asked, self._engine, ending.now)
            elif ending.outcome == "ok" and self._status < 400:
                self._gate.answered(self.asked)
        self._leave()

    def _leave(self) -> None:
        if self._engine is not None:
            self._gate.left(self.asked, self._engine)
            self._engine = None

    # ---------------------------------------------------------------- its answer, as it passes

    @property
    def reports_streams(self) -> bool:
        """True if a stream ends with a word on its shape."""
        return self._gate.report_validity

    def answer_judge(self, *, reports: bool = False) -> AnswerJudge:
        """Return what reads the answer. `reports`: a stream is to end with a word on it."""
        most = self._gate.answer_bytes
        return AnswerJudge(most, most, count=self._verdicts.count_answer, reports=reports)

    async def judge(self, said: Sequence[AnswerText] | None) -> bool | None:
        """Return whether an answer, which has said this, has its shape; None if that cannot be
        told. Counts it."""
        said = said if self.can_be_judged else None
        return await self._verdicts.is_valid(self.asked, said, self._asker)

    def judge_later(self, answer: AnswerJudge) -> None:
        """Have an answer judged that has come to its end. It is counted, and no more."""
        if answer.is_read:
            self.spawn(self.judge(answer.said()))

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run what goes on after the answer's last byte; it ends with the gate."""
        self._verdicts.spawn(work)
