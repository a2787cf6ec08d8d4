"""Long chats, rendered and tokenized: new, of known words, and growing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferway_bench import chats
from inferway_bench.chats import Message, Turns
from inferway_bench.prompts.asking import Asked
from inferway_bench.prompts.models import BenchModel, BenchModels
from inferway_bench.prompts.plan import Plan
from inferway_bench.prompts.results import Row, Target
from inferway_bench.prompts.turns import Both, Workers, in_turn

TABLE = "Chats, render and tokenize"

_WARM_UP_SEED = 1_000_000  # no repeat has it


class ChatRows:
    """One run's chats, each of them drawn once."""

    def __init__(
        self,
        plan: Plan,
        conversations: Sequence[list[Message]],
        models: BenchModels,
        workers: Workers,
    ) -> None:
        self._plan = plan
        self._turns = Turns(conversations, plan.seed)
        self._models = models
        self._workers = workers
        self._sizes = {m.label: chats.sizes(str(m.directory)) for m in models.with_chats}

    def rows(self) -> Iterator[Row]:
        yield self.first_in_process()
        yield from self.warm()
        yield self.growing(self._models.plain, Target(most=4_000))
        if self._models.fallback is not None:
            yield from self.growing_fallback(self._models.fallback)

    def first_in_process(self) -> Row:
        """Fresh processes; the model is loaded and its template compiled, no word was met."""
        both = Both()
        for repeat in range(self._plan.fresh_processes):
            chat = self._chat(self._plan.chat_tokens, self._models.plain)
            for system in in_turn(repeat):
                self._workers.on_step(f"first chat in a process: {system}, {repeat + 1}")
                with self._workers.prepared(system, self._models.plain) as worker:
                    both.add(system, worker.ask("tokenize", chat=chat))
        both.check_same("first chat")
        return _chat_row(
            f"{self._plan.chat_tokens:,} tokens, first in the process",
            both,
            Target(times=10),
            "a fresh process each time; model loaded, template compiled, no word met before",
        )

    def warm(self) -> Iterator[Row]:
        """One process each; what it met before differs."""
        with self._workers.both(self._models.plain) as workers:
            yield self._words_met(workers)
            yield self._another_chat(workers)
            yield self._one_turn_more(workers)

    def _words_met(self, workers: Mapping[str, Asked]) -> Row:
        both = Both()
        chat = self._chat(self._plan.chat_tokens, self._models.plain)
        for i in range(4):  # so that pieces at a turn's edge have been met too
            for worker in workers.values():
                worker.ask("tokenize", chat=chats.reshuffled(chat, _WARM_UP_SEED + i))
        for repeat in range(self._plan.repeats):
            self._workers.on_step(f"words met before, {repeat + 1} of {self._plan.repeats}")
            dealt = chats.reshuffled(chat, repeat)
            for system in in_turn(repeat):
                both.add(system, workers[system].ask("tokenize", chat=dealt))
        both.check_same("words met before")
        return _chat_row(
            f"{self._plan.chat_tokens:,} tokens, words met before",
            both,
            Target(times=20, most=500),
            "the sentences of a chat that was served, dealt anew to its turns: no turn is known",
        )

    def _another_chat(self, workers: Mapping[str, Asked]) -> Row:
        both = Both()
        for i in range(self._plan.served_before):
            self._workers.on_step(f"chats served before, {i + 1} of {self._plan.served_before}")
            chat = self._chat(self._plan.chat_tokens, self._models.plain)
            for worker in workers.values():
                worker.ask("tokenize", chat=chat)
        for repeat in range(self._plan.repeats):
            self._workers.on_step(f"another chat, {repeat + 1} of {self._plan.repeats}")
            chat = self._chat(self._plan.chat_tokens, self._models.plain)
            for system in in_turn(repeat):
                both.add(system, workers[system].ask("tokenize", chat=chat))
        both.check_same("another chat")
        return _chat_row(
            f"{self._plan.chat_tokens:,} tokens, another chat",
            both,
            None,
            f"real chats never seen, in a process that served {self._plan.served_before} others",
        )

    def _one_turn_more(self, workers: Mapping[str, Asked]) -> Row:
        chat = self._chat(self._plan.chat_tokens, self._models.plain)
        both = self._grown(workers, chat)
        return _chat_row(
            f"{self._plan.chat_tokens:,} tokens, one turn more",
            both,
            None,
            "the chat of the request before, an answer and a question",
        )

    def growing(self, model: BenchModel, target: Target | None) -> Row:
        chat = self._chat(self._plan.growing_tokens, model)
        with self._workers.both(model) as workers:
            both = self._grown(workers, chat)
        return _chat_row(
            f"{self._plan.growing_tokens:,} tokens, one turn more, {model.label}",
            both,
            target,
            "the chat of the request before, an answer and a question",
        )

    def growing_fallback(self, model: BenchModel) -> Iterator[Row]:
        """Encoding alone, of the text that has grown, beside the same encoder on all of it; and
        the whole way beside transformers."""
        chat = self._chat(self._plan.growing_tokens, model)
        name = f"{self._plan.growing_tokens:,} tokens, one turn more, {model.label}"
        encoded, grown = Both(), Both()
        with self._workers.both(model) as workers:
            for worker in workers.values():
                worker.ask("tokenize", chat=chat)
            for repeat in range(self._plan.repeats):
                self._workers.on_step(f"{name}, {repeat + 1} of {self._plan.repeats}")
                # Each turn comes once: the second measurement of a chat is not one of growth.
                chat = self._one_more(chat)
                for system in in_turn(repeat):
                    encoded.add(system, workers[system].ask("encode", chat=chat))
                chat = self._one_more(chat)
                for system in in_turn(repeat):
                    grown.add(system, workers[system].ask("tokenize", chat=chat))
        encoded.check_same(name)
        grown.check_same(name)
        yield _chat_row(
            f"{name}, encoding alone",
            encoded,
            Target(times=30),
            "fastokens refuses this tokenizer; theirs is `encode_batch_fast` on the whole text",
        )
        yield _chat_row(name, grown, None, "the same, template included")

    def _grown(self, workers: Mapping[str, Asked], chat: list[Message]) -> Both:
        both = Both()
        for worker in workers.values():
            worker.ask("tokenize", chat=chat)
        for repeat in range(self._plan.repeats):
            self._workers.on_step(f"one turn more, {repeat + 1} of {self._plan.repeats}")
            chat = self._one_more(chat)
            for system in in_turn(repeat):
                both.add(system, workers[system].ask("tokenize", chat=chat))
        both.check_same("one turn more")
        return both

    def _chat(self, num_tokens: int, model: BenchModel) -> list[Message]:
        sizes = self._sizes[model.label]
        return chats.chat_of(self._turns, num_tokens, sizes.count, sizes.around_turn)

    def _one_more(self, chat: list[Message]) -> list[Message]:
        """An answer and a question: the turns that come next in the conversations."""
        answer, question = next(self._turns), next(self._turns)
        return [*chat, {**answer, "role": "assistant"}, {**question, "role": "user"}]


def _chat_row(name: str, both: Both, target: Target | None, what: str) -> Row:
    return Row(
        table=TABLE,
        name=name,
        unit="µs",
        ours=both.series("inferway"),
        theirs=both.series("transformers"),
        target=target,
        note=f"{both.tokens:,} tokens; {what}",
    )
