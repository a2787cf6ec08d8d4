"""vllm-router's program scheduling (docs/program_scheduling.md at 14d6d81, September 2026): a model
of its rules, written anew.

A program is bound to an engine by a hash. It is *active* there, or *paused*; a turn of an active
one goes on at once, that of a paused one waits until the program is resumed. When an answer has
ended, an active program stays active for a time to live that maximises

    P(T < d) C - E[T; T < d] - d P(T >= d)

with log-normal gaps T that are fitted to the engine's last 100, and C, what computing its prompt
again would cost; before there are 100 it is 0. A program is resumed where what the active ones
hold, its own prompt, and a reserve for their growth fit the cache, if no request waits at the
engine; or without the reserve, if the larger batch is modelled to gain more than it costs; or once
it has waited for long enough. Over capacity, programs that are computing are marked, and pause with
their answer. The most recently active one is resumed first. A program that has waited may go to
another engine that has room for 1.2 times its prompt more than its own. The coefficients are those
of the simulated engines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import xxhash

from inferway_bench.policies.engine import Engine
from inferway_bench.sessions.agents import Agents
from inferway_bench.sessions.run import MakeAdmission, TurnEvent

_WINDOW = 100
_MOST_ROUNDS = 14
_MOST_ACTIVE = 64
_BUFFER = 100  # tokens
_TICK = 1.0  # seconds
_HEADROOM = 1.2
_CONTINUOUS = 0.9
_FORCED = (30.0, 300.0)
_NORMAL = NormalDist()


@dataclass(slots=True, eq=False)
class _Program:
    at: int  # the engine
    is_active: bool = False
    is_paused_once: bool = False  # it has been active before
    yields: bool = False
    marked: bool = False  # pauses with its answer
    tokens: int = 0
    turn: int | None = None  # that waits
    queued: float = 0.0
    forced: float = math.inf
    num_computing: int = 0
    ttl_ends: float = math.inf
    ended: float = -math.inf  # the last answer
    impact: float = 0.0  # seconds, of computing its prompt again
    activated: float = 0.0
    rounds: int = 0  # since it was resumed
    rounds_since_ttl: int = 0
    context: int = 0  # of the last turn

    @property
    def needs(self) -> int:
        return self.tokens + _BUFFER


@dataclass(slots=True)
class _Rank:
    """What is known of an engine."""

    waiting: int = 0  # requests, when it was asked last
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    # (growth, answer tokens, rounds since the last TTL pause, when it ended, decode seconds)
    turns: deque[tuple[int | None, int, int, float, float]] = field(
        default_factory=lambda: deque(maxlen=_WINDOW)
    )
    prompts: deque[int] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def is_mature(self) -> bool:
        return len(self.turns) == _WINDOW

    @property
    def target_rounds(self) -> float:
        if not self.is_mature:
            return 0.0
        mean = sum(turn[2] for turn in self.turns) / _WINDOW
        return min(max(math.ceil(2 * mean), 1), _MOST_ROUNDS)

    @property
    def growth(self) -> float:
        grown = [turn[0] for turn in self.turns if turn[0] is not None]
        return sum(grown) / len(grown) if grown else 0.0

    @property
    def answer(self) -> float:
        return sum(turn[1] for turn in self.turns) / len(self.turns) if self.turns else 0.0

    @property
    def throughput(self) -> float:
        if len(self.turns) < 2:
            return 0.0
        took = self.turns[-1][3] - self.turns[0][3]
        return (len(self.turns) - 1) / took if took > 0 else 0.0


@dataclass(slots=True)
class Programs:
    """See the module."""

    agents: Agents
    engines: Sequence[Engine]
    most_ttl: float = 10.0
    _programs: dict[int, _Program] = field(default_factory=dict)
    _ranks: list[_Rank] = field(default_factory=list)
    _queue: list[_Program] = field(default_factory=list)
    _ready: list[tuple[int, int]] = field(default_factory=list)
    _tick: float = 0.0

    def __post_init__(self) -> None:
        self._ranks = [_Rank() for _ in self.engines]

    def arrives(self, turn: TurnEvent) -> None:
        index, now = turn.index, turn.now
        session = int(self.agents.session[index])
        program = self._programs.get(session)
        if program is None:
            at = xxhash.xxh64_intdigest(b"%d" % session) % len(self.engines)
            program = self._programs[session] = _Program(at)
        elif not program.num_computing and program.ended > -math.inf:
            self._ranks[program.at].gaps.append(now - program.ended)
        prompt = int(self.agents.workload.columns.prompt_tokens[index])
        program.tokens = max(program.tokens, prompt)
        program.turn = index
        if program.is_active:
            self._dispatch(program)
            return
        program.queued = now
        self._queue.append(program)
        program.forced = now + self._force_seconds(program, now)

    def goes(self, now: float) -> Iterator[tuple[int, int | None]]:
        self._decide(now)
        while self._ready:
            yield self._ready.pop()

    def sent(self, turn: TurnEvent) -> None: ...

    def ended(self, turn: TurnEvent) -> None:
        index, now, row, cached_tokens = turn.index, turn.now, turn.row, turn.cached_tokens
        agents = self.agents
        program = self._programs[int(agents.session[index])]
        request = agents.workload.requests[index]
        program.num_computing -= 1
        rank, prompt = self._ranks[row], request.prompt_tokens
        growth = prompt - program.context
        grown = growth if program.context and 0 < growth < program.context else None
        if not program.context or cached_tokens >= _CONTINUOUS * program.context:
            program.rounds += 1
            program.rounds_since_ttl += 1
        program.context = program.tokens = prompt
        program.ended, program.impact = now, self._impact(prompt)
        decoded = request.output_tokens * self.engines[0].spec.step_seconds
        rank.turns.append((grown, request.output_tokens, program.rounds_since_ttl, now, decoded))
        rank.prompts.append(prompt)
        if agents.last[index]:
            del self._programs[int(agents.session[index])]
        elif program.marked:
            self._pause(program)
        else:
            program.ttl_ends = now + self._ttl(rank, program.impact)

    def wakes(self) -> float:
        return self._tick

    def _decide(self, now: float) -> None:
        if now >= self._tick:
            self._tick = now + _TICK
            for rank, engine in zip(self._ranks, self.engines, strict=True):
                rank.waiting = engine.told.waiting
        for program in self._programs.values():
            idle = program.is_active and not program.num_computing
            if idle and program.ttl_ends <= now:
                self._pause(program)
                program.rounds_since_ttl = 0
            elif idle and program.rounds >= _MOST_ROUNDS and self._is_awaited(program.at):
                self._pause(program)
                program.yields = True
        for row in range(len(self._ranks)):
            self._repair(row, now)
        self._resume(now)

    def _dispatch(self, program: _Program) -> None:
        assert program.turn is not None
        self._ready.append((program.turn, program.at))
        program.turn, program.ttl_ends = None, math.inf
        program.num_computing += 1

    def _pause(self, program: _Program) -> None:
        program.is_active, program.is_paused_once, program.marked = False, True, False
        program.ttl_ends, program.rounds = math.inf, 0

    def _is_awaited(self, row: int) -> bool:
        return any(program.at == row for program in self._queue)

    def _active(self, row: int) -> list[_Program]:
        return [each for each in self._programs.values() if each.is_active and each.at == row]

    def _used(self, row: int) -> int:
        return sum(each.needs for each in self._active(row))

    def _capacity(self) -> int:
        return self.engines[0].spec.cache_tokens

    def _impact(self, tokens: int) -> float:
        """The cost of computing a prompt again, with what it holds up: hardly a token is written
        beside a full step of prompts."""
        spec = self.engines[0].spec
        kept = spec.step_seconds / (
            spec.step_seconds + spec.max_batched_tokens * spec.prefill_seconds
        )
        return (spec.step_seconds + spec.prompt_seconds(0, tokens)) * (2 - kept)

    def _ttl(self, rank: _Rank, impact: float) -> float:
        gaps = [gap for gap in rank.gaps if gap > 0]
        most = min(self.most_ttl, impact)
        if len(rank.gaps) < _WINDOW or not gaps or most <= 0:
            return 0.0
        logs = [math.log(gap) for gap in gaps]
        mean = sum(logs) / len(logs)
        sigma = max(1e-6, math.sqrt(sum((each - mean) ** 2 for each in logs) / len(logs)))
        whole = math.exp(mean + sigma**2 / 2)
        best, found = 0.0, 0.0
        least = min(0.05, most)
        for step in range(32):
            ttl = math.exp(math.log(least) + (math.log(most) - math.log(least)) * step / 31)
            hit = _NORMAL.cdf((math.log(ttl) - mean) / sigma)
            within = whole * _NORMAL.cdf((math.log(ttl) - mean - sigma**2) / sigma)
            utility = impact * hit - within - ttl * (1 - hit)
            if utility >= best:
                best, found = utility, ttl
        return found

    def _force_seconds(self, program: _Program, now: float) -> float:
        rates = [(rank.target_rounds, rank.throughput) for rank in self._ranks]
        if any(rounds <= 0 or rate <= 0 for rounds, rate in rates):
            return _FORCED[1]
        left = sum(
            max(rates[each.at][0] - each.rounds, float(each.num_computing > 0))
            for each in self._programs.values()
            if each.is_active
        )
        for other in sorted(self._queue, key=lambda each: _order(each, now)):
            if other is program:
                break
            left += max(rates[other.at][0], 1.0)
        seconds = 3.0 * left / sum(rate for _, rate in rates)
        return min(max(seconds, _FORCED[0]), _FORCED[1])

    def _repair(self, row: int, now: float) -> None:
        rank, active = self._ranks[row], self._active(row)
        computing = [each for each in active if each.num_computing]
        answer = math.ceil(rank.answer)
        over = sum(each.needs for each in active) + answer * len(computing) - self._capacity()
        if over <= 0:
            return
        mean = max(1.0, sum(rank.prompts) / len(rank.prompts)) if rank.prompts else 1.0

        def score(program: _Program) -> float:
            ratio = max(program.tokens / mean, 1e-6)
            return -(now - program.activated) * max(0.5, 1 / math.sqrt(ratio))

        for program in sorted(computing, key=score):
            if over <= 0:
                return
            if not program.marked:
                program.marked = True
                over -= program.needs + answer

    def _resume(self, now: float) -> None:
        while self._resume_at_home(now) or self._resume_elsewhere(now):
            pass

    def _resume_at_home(self, now: float) -> bool:
        for program in sorted(self._queue, key=lambda each: _order(each, now)):
            if self._admits(program, program.at, now):
                self._activate(program, program.at, now)
                return True
        return False

    def _resume_elsewhere(self, now: float) -> bool:
        waiting = sorted(
            self._queue, key=lambda each: (each.forced > now, each.yields, each.queued)
        )
        for program in waiting:
            if not program.is_paused_once or now - program.queued < _TICK:
                continue
            home = program.at
            if not (self._ranks[home].waiting or self._goes_after(program, now)):
                continue
            limit = self._capacity()
            needed = max(0, limit - self._used(home)) + _HEADROOM * program.tokens
            rows = [
                row
                for row, rank in enumerate(self._ranks)
                if row != home and not self._is_awaited(row)
                and rank.is_mature and self._ranks[home].is_mature
                and limit - self._used(row) >= needed and self._admits(program, row, now)
            ]  # fmt: skip
            if rows:
                row = min(rows, key=lambda each: (self._ranks[each].waiting, self._used(each)))
                self._activate(program, row, now)
                return True
        return False

    def _goes_after(self, program: _Program, now: float) -> bool:
        mine = _order(program, now)
        return any(
            other is not program and other.at == program.at
            and now - other.queued >= _TICK and _order(other, now) < mine
            for other in self._queue
        )  # fmt: skip

    def _activate(self, program: _Program, row: int, now: float) -> None:
        self._queue.remove(program)
        program.at, program.is_active, program.activated = row, True, now
        program.rounds, program.yields, program.forced = 0, False, math.inf
        self._dispatch(program)

    def _admits(self, program: _Program, row: int, now: float) -> bool:
        if program.forced <= now:
            return True
        rank, active = self._ranks[row], self._active(row)
        if rank.waiting or len(active) >= _MOST_ACTIVE:
            return False
        free = self._capacity() - sum(each.needs for each in active) - program.needs
        if free < 0:
            return False
        left = [max(rank.target_rounds - each.rounds, 0.0) for each in active]
        reserve = rank.growth * (rank.target_rounds + sum(left)) if rank.target_rounds else 0.0
        return reserve <= free or self._gains(program, rank, active, free + program.needs)

    def _gains(
        self, program: _Program, rank: _Rank, active: Sequence[_Program], free: float
    ) -> bool:
        """Whether a larger batch is worth more than what it costs."""
        computing = sum(1 for each in active if each.num_computing)
        if not rank.is_mature or not computing:
            return False
        spec = self.engines[0].spec
        before = computing / (spec.step_seconds + spec.decode_seconds * computing)
        after = (computing + 1) / (spec.step_seconds + spec.decode_seconds * (computing + 1))
        decoding = sum(turn[4] for turn in rank.turns) / len(rank.turns)
        gain = decoding * max(0.0, after / before - 1)
        return gain >= self._impact(program.tokens) + self._loss(program, rank, active, free)

    @staticmethod
    def _loss(program: _Program, rank: _Rank, active: Sequence[_Program], free: float) -> float:
        growth, target = rank.growth, rank.target_rounds
        protected = [each for each in active if target > each.rounds]
        if growth <= 0 or not protected:
            return 0.0
        rounds = sum(target - each.rounds for each in protected)
        before = min(rounds, free / growth)
        after = min(rounds, max(0.0, free - program.needs - growth * target) / growth)
        if after <= 0:
            return math.inf if before > 0 else 0.0
        mean = sum(each.impact for each in protected) / len(protected)
        return max(0.0, before - after) / after * mean


def _order(program: _Program, now: float) -> tuple[bool, bool, float, float]:
    """Who is resumed first: whose time is over, who does not yield, who was active last."""
    return program.forced > now, program.yields, -program.ended, program.queued


def programs(most_ttl: float = 10.0) -> MakeAdmission:
    return lambda agents, engines, _: Programs(agents, engines, most_ttl)
