"""Policies that were published, each a model of its rule as its paper or its code states it. All of
them know by KV events what engines hold, so that they differ by their decisions alone.

`Prefill` (llm-d's count of tokens in flight) says how many tokens of prompts an engine has still to
compute, those that this request would add included."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from inferway.model import Candidates, Column, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import (
    Picker,
    ProfileHandler,
    RequestListener,
    RequestListenerFactory,
    RequestOutcome,
)
from inferway.scheduling.prefix_source import PrecisePrefixSource
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Policy, chosen
from inferway_llmd.scheduling.producers.inflight_load import InflightLoad, token_column

_PREFILL = token_column("prefill")
_PROFILED = EngineSpec()  # by those whose rules need an engine's times from before
Columns = NDArray[np.floating[Any]]  # a row for each engine, or answer


def published(rule: ProfileHandler) -> Policy:
    """Return the policy of a rule, which reads what is to be computed on each engine, and may
    follow the requests."""
    prefill = InflightLoad(_PREFILL, PrecisePrefixSource())
    following = [prefill, rule] if isinstance(rule, RequestListenerFactory) else [prefill]
    return Policy(rule, (prefill,), following, sees_blocks=True)


def _prefill(candidates: Candidates) -> Column:
    tokens = candidates.get(_PREFILL)
    assert tokens is not None
    return tokens


def _new_tokens(request: LLMRequest, candidates: Candidates) -> Column:
    """Return the prompt's tokens that each engine would have to compute, one at least."""
    held = candidates.matched_blocks * candidates.block_sizes
    new: Column = np.maximum(request.num_prompt_tokens - held, 1.0)
    return new


def _requests(candidates: Candidates) -> Column:
    return candidates.in_flight + candidates.others


@dataclass(slots=True)
class LMetric:
    """LMETRIC (arXiv 2603.15202, abstract: "new prefill tokens if routed to an instance" times
    "current batch size of the instance"): the least product wins.

    An engine's new prefill tokens are those that wait there and this request's, and its batch has
    this request in it: with an empty batch the product would say nothing.
    """

    picker: Picker = field(default_factory=MaxScore)

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        scores = _prefill(candidates) * (_requests(candidates) + 1)
        return chosen(candidates, self.picker.pick(-scores, 1)[0])


@dataclass(slots=True)
class DynamoCost:
    """Dynamo's KV router (reference/field-notes.md, "Dynamo cost model"; 1.6, temperature 0):

        cost = prefill_load_scale * (prefill blocks - overlap credits) + decode blocks

    Prefill blocks are those of prompts without a first token, this one's included, less what is
    cached there (a device block's credit is 1); decode blocks are in use there by requests that
    have not ended and this one, equal ones counted once.
    """

    block_tokens: int
    prefill_load_scale: float = 1.0
    picker: Picker = field(default_factory=MaxScore)
    used: list[Counter[int]] = field(default_factory=list)  # by engine: block -> its requests

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        blocks = self.blocks(request)
        self.used += [Counter() for _ in range(len(candidates.endpoints) - len(self.used))]
        costs = _prefill(candidates) * (self.prefill_load_scale / self.block_tokens)
        for row, used in enumerate(self.used):
            costs[row] += len(used) + sum(block not in used for block in blocks)
        return chosen(candidates, self.picker.pick(-costs, 1)[0])

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        used = self.used[choice.targets[0].endpoint.holder]
        return _Using(used, self.blocks(request))

    def blocks(self, request: LLMRequest) -> Sequence[int]:
        """Return the blocks of the prompt."""
        return request.prompts[self.block_tokens][0].block_keys


@dataclass(slots=True)
class _Using(RequestListener):
    used: Counter[int]
    blocks: Sequence[int]

    def on_attempt(self, target: Target, now: float) -> Headers:
        self.used.update(self.blocks)
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        used = self.used
        for block in self.blocks:
            used[block] -= 1
            if not used[block]:
                del used[block]


@dataclass(slots=True)
class DualMap:
    """DualMap (arXiv 2602.06502, abstract): two hashes of the prompt's beginning name two engines.
    Of them the one that holds more of the prompt is chosen, unless its expected TTFT exceeds the
    SLO; then, and where they hold as much, the one whose TTFT is less.

    The beginning is as long as it takes to be shared by no more than an engine's part of the
    requests, or a few (the paper adapts the length; how was not to be had). Left out: it moves
    requests that wait at an engine to their other one, which no gateway before vLLM can do.
    """

    block_tokens: int
    spec: EngineSpec = _PROFILED  # by which it expects a TTFT
    slo_seconds: float = 2.0
    few: int = 10
    seen: Counter[int] = field(default_factory=Counter)  # block -> requests
    num_seen: int = 0

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        num = len(candidates.endpoints)
        pair = hashed(self._key(request.prompts[self.block_tokens][0].block_keys, num), num)
        ttft, held = _prefill(candidates) * self.spec.prefill_seconds, candidates.matched_blocks
        best = max(pair, key=lambda row: (held[row], -ttft[row]))
        if ttft[best] > self.slo_seconds:
            best = min(pair, key=lambda row: ttft[row])
        return chosen(candidates, best)

    def _key(self, blocks: Sequence[int], num_engines: int) -> int:
        self.num_seen += 1
        for block in blocks:
            self.seen[block] += 1
            if self.seen[block] <= max(self.num_seen / num_engines, self.few):
                return block
        return blocks[-1] if blocks else self.num_seen


def hashed(key: int, num_engines: int, count: int = 2) -> list[int]:
    """Return the engines that rank first for a key; each is as likely to (rendezvous hashing)."""
    text = key.to_bytes(8, "big")
    return sorted(range(num_engines), key=lambda row: xxh64_intdigest(text, row))[:count]


@dataclass(slots=True)
class Preble:
    """Preble's E2 (arXiv 2407.00023, section 3.2; WukLab/preble 8e7906a,
    global_scheduler_with_time.py, `runtime_selector`). If more of the prompt is cached than is not,
    it goes where most of it is cached, to the least loaded of these (exploitation); else where the
    load and its own prefill cost the least (exploration).

    The load of an engine is the prefill time of what was sent there in the last three minutes, and
    for each request there a mean answer at the engine's time per token. An engine whose load is
    1.5 times the least does not exploit: requests go to the least loaded (post-assignment
    rebalancing). Costs of evictions are left out, as the code leaves them out by default.
    """

    spec: EngineSpec = _PROFILED
    window_seconds: float = 180.0
    imbalance: float = 1.5
    sent: deque[tuple[float, int, float]] = field(default_factory=deque)  # (when, engine, seconds)
    prefill: Column = field(default_factory=lambda: np.zeros(0))  # seconds in the window
    tpot: Column = field(default_factory=lambda: np.zeros(0))
    answer_tokens: float = 45.0  # the code's first guess

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        if not len(self.prefill):
            num = len(candidates.endpoints)
            self.prefill, self.tpot = np.zeros(num), np.full(num, self.spec.step_seconds)
        while self.sent and self.sent[0][0] < candidates.now - self.window_seconds:
            _, row, seconds = self.sent.popleft()
            self.prefill[row] -= seconds
        load = self.prefill + _requests(candidates) * self.answer_tokens * self.tpot
        new = _new_tokens(request, candidates)
        cost = load + new * self.spec.prefill_seconds
        least = new.min()
        if request.num_prompt_tokens - least > least:
            exploited = np.where(new == least, load, np.inf)
            if exploited.min() <= self.imbalance * load.min() or not load.min():
                cost = exploited
            else:
                cost = load
        row = int(cost.argmin())
        seconds = float(new[row]) * self.spec.prefill_seconds
        self.sent.append((candidates.now, row, seconds))
        self.prefill[row] += seconds
        return chosen(candidates, row)

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return _Decoding(self, choice.targets[0].endpoint.holder)


@dataclass(slots=True)
class _Decoding(RequestListener):
    rule: Preble
    row: int
    first: float = 0.0

    def on_first_chunk(self, now: float) -> None:
        self.first = now

    def on_end(self, ending: RequestOutcome) -> None:
        rule, usage = self.rule, ending.usage
        if usage is not None and usage.completion > 1:
            took = (ending.now - self.first) / (usage.completion - 1)
            rule.tpot[self.row] += (took - rule.tpot[self.row]) / 100
            rule.answer_tokens += (usage.completion - rule.answer_tokens) / 100


@dataclass(slots=True)
class Lodestar:
    """Lodestar (arXiv 2606.00946; gangmuk/Lodestar 23da2a0, README, run-benchmark.sh and
    write_hyperparameters.py): a perceptron with three hidden layers of 128, the same for all
    engines, predicts the TTFT from the request and the engine's state, and the least is chosen; of
    ten requests, one goes to any engine. It is trained anew after every 1,000 answers, of the last
    5,000 and of 5,000 older ones; until then `first` chooses. While the caches are in use by more
    than 80 %, it chooses among the two engines that the prompt's hash names.

    The older answers are drawn at random (the paper's are a gradient coreset), nothing is trained
    beforehand, and dropout and the check for inputs out of distribution are left out.
    """

    block_tokens: int
    kinds: Column  # the engines' GPU model, as a number
    rng: np.random.Generator
    first: LMetric = field(default_factory=LMetric)
    saturated: float = 0.8
    explored: float = 0.1  # share of the requests
    every: int = 1_000
    buffer: int = 5_000
    recent: deque[tuple[Column, float]] = field(default_factory=deque)  # (state, seconds)
    replay: list[tuple[Column, float]] = field(default_factory=list)
    num_learned: int = 0
    model: Perceptron | None = None
    _states: Columns = field(default_factory=lambda: np.zeros((0, 0)))

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        self._states = states = self._described(request, candidates)
        if self.model is None:
            return self.first.choose(request, candidates)
        ttft = self.model.predicted(states)
        rows: Sequence[int] = range(len(ttft))
        if candidates.kv_usage.mean() > self.saturated:
            blocks = request.prompts[self.block_tokens][0].block_keys
            rows = hashed(blocks[0] if blocks else 0, len(ttft))
        if self.rng.random() < self.explored:
            return chosen(candidates, rows[int(self.rng.integers(len(rows)))])
        return chosen(candidates, min(rows, key=lambda row: float(ttft[row])))

    def _described(self, request: LLMRequest, candidates: Candidates) -> Columns:
        new, prompt = _new_tokens(request, candidates), float(request.num_prompt_tokens)
        return np.stack(
            [
                new,
                1.0 - new / prompt,
                np.full(len(new), prompt),
                _prefill(candidates) - new,
                _requests(candidates),
                candidates.waiting,
                candidates.kv_usage,
                self.kinds,
            ],
            axis=1,
        )

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener:
        return _Awaited(self, self._states[choice.targets[0].endpoint.holder], candidates.now)

    def learn(self, state: Column, seconds: float) -> None:
        """Keep an answer, and train when there are enough new ones."""
        if len(self.recent) == self.buffer:
            old = self.recent.popleft()
            if len(self.replay) < self.buffer:
                self.replay.append(old)
            elif (at := int(self.rng.integers(self.num_learned))) < self.buffer:
                self.replay[at] = old
        self.recent.append((state, seconds))
        self.num_learned += 1
        if self.num_learned % self.every == 0:
            answers = [*self.recent, *self.replay]
            self.model = Perceptron(len(state), self.rng)
            states = np.array([state for state, _ in answers])
            self.model.train(states, np.array([seconds for _, seconds in answers]))


@dataclass(slots=True)
class _Awaited(RequestListener):
    rule: Lodestar
    state: Column
    began: float

    def on_first_chunk(self, now: float) -> None:
        self.rule.learn(self.state, now - self.began)


class Perceptron:
    """A perceptron that predicts one number, trained by Adam on the squared error."""

    def __init__(self, inputs: int, rng: np.random.Generator, hidden: int = 128) -> None:
        sizes = [inputs, hidden, hidden, hidden, 1]
        self._rng = rng
        self._layers = [
            [
                rng.standard_normal((size, width), np.float32) * np.float32((2 / size) ** 0.5),
                np.zeros(width, np.float32),
            ]
            for size, width in pairwise(sizes)
        ]
        self._moments = [[np.zeros_like([part] * 2) for part in both] for both in self._layers]
        self._steps = 0
        self._mean = self._scale = np.zeros(inputs)
        self._unit = 1.0

    def predicted(self, inputs: Columns) -> Column:
        """Return the number of each row."""
        outputs = self._outputs(self._scaled(inputs))[-1]
        return outputs[:, 0].astype(np.float64) * self._unit

    def _scaled(self, inputs: Columns) -> Columns:
        return ((inputs - self._mean) / self._scale).astype(np.float32)

    def train(self, inputs: Columns, targets: Column, epochs: int = 50, batch: int = 256) -> None:
        """Learn the targets of all rows."""
        self._mean, self._scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
        self._unit = float(targets.std()) or 1.0
        scaled, wanted = self._scaled(inputs), (targets / self._unit).astype(np.float32)
        for _ in range(epochs):
            order = self._rng.permutation(len(wanted))
            for at in range(0, len(order), batch):
                some = order[at : at + batch]
                self._step(scaled[some], wanted[some])

    def _outputs(self, inputs: Columns) -> list[Columns]:
        outputs = [inputs]
        for weights, bias in self._layers:
            after = outputs[-1] @ weights + bias
            outputs.append(after if len(outputs) == len(self._layers) else np.maximum(after, 0.0))
        return outputs

    def _step(self, inputs: Columns, wanted: Columns, rate: float = 1e-3) -> None:
        outputs = self._outputs(inputs)
        slope = 2 * (outputs[-1] - wanted[:, None]) / len(wanted)
        self._steps += 1
        shrink = (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        layers = zip(self._layers, self._moments, outputs[:-1], strict=True)
        for both, moments, before in reversed(list(layers)):
            slopes = (before.T @ slope, slope.sum(axis=0))
            slope = (slope @ both[0].T) * (before > 0)
            for part, (first, second), each in zip(both, moments, slopes, strict=True):
                first += 0.1 * (each - first)
                second += 0.001 * (each * each - second)
                part -= rate * shrink * first / (np.sqrt(second) + 1e-8)
