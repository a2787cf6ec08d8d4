"""A schedule is a kind of trouble and a seed: the same two, the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.chaos.engine import Features
from tests.chaos.judge import Verdict, WrongBelief, judge
from tests.chaos.workers import Workers
from tests.chaos.world import Troubles, World

CALM = Troubles()
WINDOW, STATES = "full,window:5", "full,mamba:align"
KINDS: dict[str, Troubles] = {
    "lost messages": replace(CALM, lost=0.15),
    "doubled messages": replace(CALM, doubled=0.3),
    "reordered, late messages": replace(CALM, late=0.3),
    "corrupt messages": replace(CALM, corrupt=0.2),
    "engines that send what cannot be read": replace(CALM, spoilt=0.1),
    "holes inside replays": replace(CALM, lost=0.15, holes=0.5),
    "engine restarts": replace(CALM, restart=0.06),
    "engine restarts that keep the link": replace(CALM, silent_restart=0.06, audit=0.04),
    "links that break": replace(CALM, link=0.1),
    "gateway restarts": replace(CALM, gateway=0.05),
    "gateway restarts with a snapshot": replace(CALM, snapshot=0.06, restart=0.02, lost=0.05),
    "late joiners": replace(CALM, joins_late=True, ring=4),
    "a replay socket that dies": replace(CALM, lost=0.1, dead_replay=0.06, link=0.03),
    "a replay socket that is dead": replace(CALM, lost=0.1, replay_lives=False),
    "engines that stand still": replace(CALM, lost=0.1, freeze=0.1, link=0.03, restart=0.02),
    "connections that bring nothing": replace(CALM, lost=0.1, blackhole=0.1, restart=0.02),
    "no replay socket": replace(CALM, lost=0.1, can_replay=False),
    "caches cleared": replace(CALM, clear=0.06, joins_late=True, ring=4),
    "duplicate blocks": replace(CALM, features=Features(twins=True), joins_late=True, ring=6),
    "inner blocks removed": replace(CALM, features=Features(odd_eviction=True), lost=0.05),
    "blocks in two tiers": replace(CALM, features=Features(cpu_blocks=12), lost=0.05, clear=0.02),
    "caches of two tiers cleared": replace(
        CALM, features=Features(cpu_blocks=12), joins_late=True, ring=2, clear=0.08, gateway=0.06
    ),
    "tiers and salts": replace(
        CALM, features=Features(cpu_blocks=12, mixed=True), lost=0.05, restart=0.02
    ),
    "tiers, salts and evictions": replace(
        CALM,
        features=Features(cpu_blocks=12, mixed=True, odd_eviction=True),
        joins_late=True,
        ring=4,
        adopt=0.2,
    ),
    "sliding windows": replace(CALM, features=Features(groups=WINDOW), lost=0.05),
    "windows where prompts end": replace(
        CALM, features=Features(groups=WINDOW, keeps_all=False), lost=0.05
    ),
    "states of steps": replace(CALM, features=Features(groups=STATES), lost=0.05, restart=0.02),
    "states where prompts end": replace(
        CALM, features=Features(groups=STATES, keeps_all=False), lost=0.05, joins_late=True, ring=4
    ),
    "windows and states": replace(
        CALM, features=Features(groups=f"{WINDOW},mamba:align"), lost=0.05, gateway=0.03
    ),
    "data-parallel ranks": replace(CALM, ranks=3, lost=0.05, restart=0.02),
    "adapters and salts": replace(CALM, features=Features(mixed=True), lost=0.05),
    "blocks reported again": replace(
        CALM, report=0.15, joins_late=True, ring=4, clear=0.02, gateway=0.02, snapshot=0.02
    ),
    "orphans adopted": replace(
        CALM, adopt=0.4, joins_late=True, ring=2, gateway=0.03, features=Features(odd_eviction=True)
    ),
    "a bounded index": replace(CALM, max_blocks=20, ranks=2),
    "everything": CALM,
}
SHARES = ("lost", "doubled", "late", "corrupt", "spoilt", "holes", "restart", "link", "snapshot")
RARE = (
    *("silent_restart", "gateway", "dead_replay", "freeze", "blackhole"),
    *("clear", "adopt", "audit"),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    kind: str
    seed: int
    turns: int | None = None  # None: as the seed says; less, to find the shortest that fails
    workers: bool = False  # the index is a hub's, and those of its workers are judged as well

    @property
    def command(self) -> str:
        more = "" if self.turns is None else f" --turns {self.turns}"
        more += " --workers" if self.workers else ""
        return f".venv/bin/python -m tests.chaos --kind {self.kind!r} --seed {self.seed}{more}"


Rngs = tuple[Random, Random]  # of the storm, of the calm
Tell = Callable[[str], None]  # what was done in a turn
Played = tuple[Sequence[Verdict], int]  # and how many messages were left out


@dataclass(frozen=True, slots=True)
class Outcome:
    schedule: Schedule
    verdicts: Sequence[Verdict]
    excluded: int  # messages that showed a restart which nobody can see
    wrong: str | None = None


def run(schedule: Schedule, tell: Callable[[str], None] | None = None) -> Outcome:
    """Storm, calm, verdict. A wrong belief or an error is in the outcome."""
    rng = Random(f"{schedule.kind}/{schedule.seed}")
    troubles = draw(KINDS[schedule.kind], rng, mixed=schedule.kind == "everything")
    turns = rng.choice((20, 60, 120, 250))
    storm_rng, calm_rng = Random(rng.getrandbits(64)), Random(rng.getrandbits(64))
    verdicts: Sequence[Verdict] = ()
    wrong, excluded = None, 0
    try:
        most = turns if schedule.turns is None else schedule.turns
        play = _with_workers(schedule) if schedule.workers else _alone
        verdicts, excluded = asyncio.run(play(troubles, most, (storm_rng, calm_rng), tell))
    except WrongBelief as e:
        wrong = str(e)
    except Exception as e:
        if tell is not None:
            raise
        wrong = f"{type(e).__name__}: {e}"
    return Outcome(schedule, verdicts, excluded, wrong)


async def _alone(troubles: Troubles, turns: int, rngs: Rngs, tell: Tell | None) -> Played:
    """A gateway that is one process."""
    world = World(troubles, rngs[0])
    for turn in world.storm(turns):
        if tell is not None:
            tell(turn)
    world.rng = rngs[1]
    world.calm()
    return await judge(world), _excluded(world)


def _with_workers(schedule: Schedule) -> Callable[..., Coroutine[None, None, Played]]:
    async def play(troubles: Troubles, turns: int, rngs: Rngs, tell: Tell | None) -> Played:
        workers = Workers(Random(f"workers of {schedule.kind}/{schedule.seed}"))
        try:
            world = World(troubles, rngs[0], workers.make_index)
            for turn in world.storm(turns):
                if tell is not None:
                    tell(turn)
                await workers.turn()
            world.rng = rngs[1]
            world.calm()
            return await workers.judge(world), _excluded(world)
        finally:
            workers.close()

    return play


def _excluded(world: World) -> int:
    return sum(line.excluded for line in world.lines)


def shortest(schedule: Schedule) -> Schedule:
    """The failing schedule with as few turns as still fail."""
    for turns in range(251):
        short = replace(schedule, turns=turns)
        if run(short).wrong is not None:
            return short
    return schedule


def draw(troubles: Troubles, rng: Random, *, mixed: bool) -> Troubles:
    """A kind's own trouble, in an engine of any make, with some of the others'."""
    share = 0.5 if mixed else 0.1
    more: dict[str, object] = {}
    for name in (*SHARES, *RARE):
        if not getattr(troubles, name) and rng.random() < share:
            more[name] = rng.choice((0.02, 0.1)) if name in SHARES else 0.03
    if not troubles.joins_late and rng.random() < share:
        more["joins_late"] = True
    if troubles.ring == CALM.ring and rng.random() < 2 * share:
        more["ring"] = rng.choice((1, 3, 10, 30))
    features = troubles.features
    features = replace(
        features,
        num_blocks=rng.choice((8, 16, 30, 60)),
        block_size=rng.choice((1, 2, 3, 4)),
        format=rng.choice(("map", "array")),
        algorithm=rng.choice(("xxhash", "xxhash", "xxhash_cbor", "sha256")),
        mixed=features.mixed or rng.random() < share,
        cpu_tokens=rng.random() < 0.7,
        cpu_extras=rng.random() < 0.2,
        cpu_chunk=rng.choice((1, 1, 2)),
        twins=features.twins or rng.random() < share,
        odd_eviction=features.odd_eviction or rng.random() < share,
    )
    if mixed:
        features = replace(
            features,
            cpu_blocks=rng.choice((0, 0, 10)),
            groups=rng.choice(("", "", "full,window:2", WINDOW, STATES)),
            keeps_all=rng.random() < 0.7,
        )
        more["ranks"] = rng.choice((1, 1, 2))
        more["max_blocks"] = rng.choice((None, None, None, 15))
        more["report"] = rng.choice((0.0, 0.0, 0.05))
        more["can_replay"] = rng.random() < 0.9
        more["replay_lives"] = rng.random() < 0.95
    if features.groups == STATES:
        features = replace(features, cpu_blocks=0)
    if features.groups and features.format == "array":
        features = replace(features, format="map")  # the flat form would need its own place
    return replace(troubles, **more, features=features)  # type: ignore[arg-type]
