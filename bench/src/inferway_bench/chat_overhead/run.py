"""The experiment of `inferway bench chat-overhead`, from the fit to the last rate."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.chat_overhead.fitting import (
    SEED_OUTPUT_TOKENS,
    SEED_PROMPT_TOKENS,
    SEED_RATES,
    Fit,
    fit,
)
from inferway_bench.chat_overhead.fleet import (
    NUM_ENGINES,
    Gateway,
    gateway,
    model_card,
    simulated_fleet,
)
from inferway_bench.chat_overhead.prompts import PromptMaker
from inferway_bench.chat_overhead.results import ChatOverheadRun, Stage, summarise
from inferway_bench.chat_overhead.workload import ARMS, KINDS, stage
from inferway_bench.chats import Turns, load_conversations
from inferway_bench.machine import command_line, this_machine
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep

_NUM_COMPARED = 4  # prompts of each kind whose ids are compared one by one


@dataclass(frozen=True, slots=True)
class Plan:
    """The seed's ladder, or a smaller one."""

    rates: tuple[float, ...] = SEED_RATES
    seconds: float = 80.0  # per rate
    prompt_tokens: tuple[int, int] = SEED_PROMPT_TOKENS
    output_tokens: tuple[int, int] = SEED_OUTPUT_TOKENS
    fit_rate: float = 20.0
    fit_seconds: float = 6.0
    warm_up_rate: float = 10.0
    warm_up_seconds: float = 4.0
    seed: int = 0
    engines: tuple[str, ...] = ()  # running ones; none: simulated ones, fitted to the seed


QUICK = Plan(rates=(3, 10, 20), seconds=6, fit_seconds=3, warm_up_rate=20, warm_up_seconds=2)


def run_chat_overhead(data: Path, plan: Plan, on_step: OnStep) -> ChatOverheadRun:
    """Measure with the conversations in `data`/chat.

    Raises BenchError, with the cure, when something cannot be had, or the two arms did not get
    the same tokens.
    """
    turns = Turns(load_conversations(data / "chat"), plan.seed)
    machine = this_machine()
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="inferway-chat-overhead-"))
        prompts = PromptMaker(
            model_card(plan.engines[0])["root"] if plan.engines else str(prepare_smollm2()),
            turns,
            plan.prompt_tokens,
            plan.output_tokens,
            plan.seed,
        )
        stack.callback(prompts.close)
        experiment = _Experiment(Path(directory), prompts, plan, on_step)
        fitted = None if plan.engines else experiment.fit()
        stages = experiment.measure(fitted)
    return ChatOverheadRun(
        machine=machine,
        command=shlex.join(command_line()),
        seed=plan.seed,
        seconds=plan.seconds,
        engines=_engines(plan),
        fit=fitted,
        text=f"real conversations of {data.name}/chat"
        + (f", all of them used {turns.num_rounds + 1} times" if turns.num_rounds else ""),
        stages=stages,
    )


def _engines(plan: Plan) -> str:
    if plan.engines:
        return f"{len(plan.engines)} engines that were running, as given with --engine"
    return f"{NUM_ENGINES} simulated engines, fitted to the seed"


@dataclass(frozen=True, slots=True)
class _Experiment:
    """The two fleets that are built one after the other, and what is sent to them."""

    directory: Path
    prompts: PromptMaker
    plan: Plan
    on_step: OnStep

    def fit(self) -> Fit:
        """From completions through a gateway whose engines take no time."""
        plan = self.plan
        self.on_step("fitting the simulated engines to the seed")
        with self._simulated(0, 0) as urls, gateway(self.directory, urls) as serving:
            salt = self._warm_up(serving)
            planned = stage(
                plan.fit_rate, plan.fit_seconds, self.prompts, serving.model, salt, plan.seed
            )
            outcomes, _ = serving.send([p for p in planned if p.arm == "completion"])
        good = [o for o in outcomes if o.error is None]
        if not good:
            raise BenchError(f"fitting: no completion succeeded: {outcomes[0].error}")
        return fit(
            [(o.ttft_us or 0) / 1e3 for o in good],
            [(o.prompt_tokens or 0) - (o.cached_tokens or 0) for o in good],
        )

    def measure(self, fitted: Fit | None) -> list[Stage]:
        """Every rate. Without a fit: with the engines that are running."""
        with ExitStack() as stack:
            urls: Sequence[str] = self.plan.engines
            if fitted is not None:
                latency = fitted.prefill_us_per_token, fitted.inter_token_ms
                urls = stack.enter_context(self._simulated(*latency))
            serving = stack.enter_context(gateway(self.directory, urls))
            salt = self._warm_up(serving)
            return [self._stage(serving, salt, number) for number in range(len(self.plan.rates))]

    def _stage(self, serving: Gateway, salt: str, number: int) -> Stage:
        rate, rates = self.plan.rates[number], len(self.plan.rates)
        seconds, seed = self.plan.seconds, self.plan.seed + number
        self.on_step(f"{rate:g} requests/s for {seconds:g} s, rate {number + 1} of {rates}")
        planned = stage(rate, seconds, self.prompts, serving.model, salt, seed)
        return summarise(rate, *serving.send(planned))

    def _simulated(
        self, prefill_us_per_token: float, inter_token_ms: float
    ) -> AbstractContextManager[list[str]]:
        return simulated_fleet(
            self.directory,
            prepare_smollm2(),
            prefill_us_per_token,
            inter_token_ms,
            self.plan.seed,
        )

    def _warm_up(self, serving: Gateway) -> str:
        """The salt that this fleet's caches know. What all prompts share is cached then, and it
        is certain that both arms bring the engines the same ids."""
        plan = self.plan
        self.on_step("warming up")
        salt = secrets.token_hex(4)
        serving.fill_caches(next(self.prompts), salt)
        for kind in KINDS:
            for _ in range(_NUM_COMPARED):
                prompt = next(self.prompts)
                for arm in ARMS:
                    if serving.prompt_token_ids(prompt, kind, arm, salt) != list(prompt.token_ids):
                        raise BenchError(f"{arm} ({kind}): the engine sees other tokens than we do")
        serving.send(
            stage(
                plan.warm_up_rate,
                plan.warm_up_seconds,
                self.prompts,
                serving.model,
                salt,
                plan.seed,
            )
        )
        return salt
