"""`inferway bench simulate`, and `policies`, `policies-fleet`, `policies-hybrid` and `kv-transfer`,
which are presets of it.

Each row of the table "simulations" gets its figures divided by those of ours in the same case: the
same trace on the same fleet at the same load. Rows of several gateways are also divided by what one
gateway does, and by the oracle. Losses are read from these columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import (
    ALWAYS,
    DEAF,
    FULL_ALONE,
    HELD,
    LEARNED,
    LLM_D,
    LLM_D_NEW,
    NEVER,
    ORACLE,
    OURS,
    THRESHOLD,
    WITH_LEGS,
    alone,
)
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.rows import Column, Findings, Key, Row, Run, Table, Value
from inferway_bench.simulate.run import SimulatePlan, preset, simulated
from inferway_bench.spread import Interval, mean_interval

_TALL = 20_000  # ms; a policy that takes longer runs off the picture
_FAR = 30  # times ours; the same
COMPARED = ("ttft", "ttft_p50", "ttft_p90", "itl_p99", "cached", "computed")
SAID = {"ttft": "mean TTFT", "ttft_p50": "p50 TTFT", "ttft_p90": "p90 TTFT"}
SAID_OF_LEGS = {"ttft_p90": "p90 TTFT", "itl_p99": "inter-token p99"}


_Case = frozenset[tuple[str, Key]]


def measure(plan: SimulatePlan, on_step: OnStep) -> Findings:
    """Simulate the plan. Raises BenchError."""
    if max(plan.slow) > min(plan.engines):
        raise BenchError(f"--slow {max(plan.slow)}: there are {min(plan.engines)} engines")
    rows = simulated(plan, on_step)
    traces = [row for row in rows if row.table == "traces"]
    return Findings(
        rows=list(with_ratios(rows)),
        about=[f"- {line}" for line in _about(plan)],
        facts={
            "most_engines": max(plan.engines),
            "most_requests": max(int(row.median("requests")) for row in traces),
        },
        seeds=list(plan.all_seeds),
    )


def _about(plan: SimulatePlan) -> Iterator[str]:
    fleet = plan.fleet(plan.settings()[0])
    yield fleet.about
    yield (
        "Loads are shares of the rate in the table of traces. Between fleets it grows in "
        "proportion to the number of engines."
    )
    if plan.capacity:
        yield (
            f"A request is within the limits if its first token takes {plan.ttft_limit:g} s at "
            f"most, and the gaps between its tokens {plan.itl_limit * 1e3:g} ms on average, at "
            "most. The rate of 100 % is where the greedy oracle keeps them for 90 % of the "
            "requests for which an idle fleet does."
        )
    for slow in plan.slow[1:]:
        yield f"In rows with slow: {slow} so many are {fleet.slow_factor:g} × slower (rates stay)."
    if plan.warm_up:
        yield f"Requests that arrive in the first {plan.warm_up:.0%} of a run do not count."
    if plan.kv_groups:
        yield (
            "The blocks of all groups have as many tokens as the trace's and share the cache. With "
            "+eagle a draft model has the last block of a hit computed again. Engines hold, evict "
            "and reuse as vLLM 0.32 does (`inferway simulate --kv-groups`). The index of "
            f"{FULL_ALONE} believes that an engine reuses the prefix that its full attention "
            "holds, all others know what all groups allow."
        )
    if any(name.partition("@")[0] in WITH_LEGS for name in plan.policy):
        yield (
            f"A transfer takes {fleet.engine.transfer_seconds * 1e3:g} ms, plus "
            f"{fleet.engine.transfer_token_seconds * 1e6:g} µs for each token."
        )


def with_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of a run, with the ratios."""
    found = {_case(row.keys): row for row in rows if row.table == "simulations"}
    for row in rows:
        values: dict[str, Value] = {}  # a ratio, or None
        if row.table == "simulations":
            ours = found.get(
                _case(row.keys, policy=OURS), found.get(_case(row.keys, policy=LEARNED))
            )
            values = {f"{name}_ratio": ratio(row, ours, name) for name in COMPARED}
            if row.keys["gateways"] != 1:
                one = _case(row.keys, gateways=1, policy=alone(str(row.keys["policy"])))
                oracle = found.get(_case(row.keys, policy=ORACLE))
                values["one_ratio"] = ratio(row, found.get(one), "ttft_p90")
                values["oracle_ratio"] = ratio(row, oracle, "ttft")
        known = {name: value for name, value in values.items() if value is not None}
        yield msgspec.structs.replace(row, values={**row.values, **known})


def _case(keys: Mapping[str, Key], **others: Key) -> _Case:
    return frozenset({**keys, **others}.items())


def ratio(above: Row, below: Row | None, column: str) -> Interval | None:
    """Return the mean of the seeds' ratios; None without one of the rows, or below zero's."""
    if below is None or not below.values.get(column) or not above.values.get(column):
        return None
    pairs = list(zip(above.repeats(column), below.repeats(column), strict=True))
    return mean_interval([a / b for a, b in pairs]) if all(b for _, b in pairs) else None


def losses(said: Mapping[str, str], run: Run) -> list[str]:
    """Return where a figure of another policy is less than that of ours, beyond chance."""
    return [
        f"{_words(row)}: the {words} of {row.keys['policy']} is {times.shown('{:.3f}')} times ours"
        for row in run.select("simulations")
        for column, words in said.items()
        if isinstance(times := row.values.get(f"{column}_ratio"), Interval) and times.high < 1
    ]


def _words(row: Row) -> str:
    others = {key: value for key, value in row.keys.items() if key not in ("policy", "engines")}
    trace = others.pop("trace")
    return ", ".join([str(trace), *(f"{key}: {value}" for key, value in others.items())])


def _is_highest(row: Row) -> bool:
    return row.keys["load"] in ("90%", "110%")


_TTFT = Column("ttft", "TTFT", "{:,.0f}", "mean")
_P90 = Column("ttft_p90", "p90", "{:,.0f}", "mean alone")
_CACHED = Column("cached", "cached", "{:.1f}%", "mean alone")

TRACES = Table(
    "traces",
    "Traces: tokens of an engine's cache; round-robin's mean TTFT in ms when idle, and the rate in "
    "requests a second at which it doubles",
    ("trace",),
    (
        Column("cache", form="{:,.0f}"), Column("requests", form="{:,.0f}"),
        Column("idle_ttft", "idle TTFT", "{:,.0f}"), Column("rate", form="{:,.3g}"),
        Column("about"),
    ),
)  # fmt: skip
_WHERE = "{trace}, engines: {engines:,}, gateways: {gateways}"
_SIMULATIONS = Table(
    "simulations",
    f"{_WHERE}, load: {{load}}: mean TTFT (95 %), its percentiles and ITL in ms; share of prompt "
    "tokens that came from a cache; CPU time of simulating the run and a request",
    ("policy", "slow", "groups"),
    (
        _TTFT, Column("ttft_p50", "p50", "{:,.0f}", "mean alone"), _P90,
        Column("ttft_p99", "p99", "{:,.0f}", "mean alone"),
        Column("itl", "ITL", "{:,.1f}", "mean alone"), _CACHED,
        Column("cpu_seconds", "CPU, s", "{:,.1f}", "mean alone"),
        Column("cpu_us", "a request, µs", "{:,.0f}", "mean alone"),
    ),
    split=("trace", "engines", "gateways", "load"),
)  # fmt: skip
_BY_LOAD = Table(
    "simulations",
    f"**{_WHERE}**: mean TTFT in ms (95 %), its p90, and the share of prompt tokens that came "
    "from a cache",
    ("policy", "slow"),
    (_TTFT, _P90, _CACHED),
    across="load",
    split=("trace", "engines", "gateways"),
    in_details=True,
)
_HIGHEST_TTFT = Table(
    "simulations", "Mean TTFT in ms, at {load} of the rate, gateways: {gateways}",
    ("policy", "slow"), (replace(_TTFT, shown="mean alone"),), across="trace",
    split=("gateways", "load"), where=_is_highest,
)  # fmt: skip
_HIGHEST_CACHED = replace(
    _HIGHEST_TTFT,
    title="Share of prompt tokens that came from a cache, at {load} of the rate, "
    "gateways: {gateways}",
    columns=(_CACHED,),
)
_P90_RATIOS = Table(
    "simulations",
    f"p90 TTFT divided by that of {OURS}, at {{load}} of the rate, gateways: {{gateways}}",
    ("policy", "slow"), (Column("ttft_p90_ratio", "p90", "{:.2f}", "value"),), across="trace",
    split=("gateways", "load"),
)  # fmt: skip

_STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#cc3311", "linestyle": "-", "linewidth": 2.4, "zorder": 5},
    ORACLE: {"color": "black", "linestyle": "--"},
    LLM_D: {"color": "#0077bb", "linewidth": 1.8},
}
_OVER_RATE = Plot(
    "simulations", ("ttft",), x="rate", by="policy", x_label="requests per second",
    y_label="mean TTFT, ms", title="{trace}", mean=True, styles=_STYLES, log_y=True, most=_TALL,
)  # fmt: skip
_OVER_POLICIES = Plot("simulations", ("ttft_p90",), x="policy", y_label="p90 TTFT, ms", log_y=True)

SIMULATE = Benchmark(
    "simulate",
    "Replay traces on a simulated fleet in virtual time, with the scheduling code of production, "
    "an engine's steps and its KV cache.",
    SimulatePlan,
    measure,
    (TRACES, _SIMULATIONS),
    Chart(
        "{most_requests:,} requests, {most_engines:,} engines",
        (
            _OVER_POLICIES,
            replace(_OVER_POLICIES, y=("cpu_us",), y_label="simulating a request, µs"),
        ),
    ),
    question="how policies perform on a trace and a fleet that you choose, in virtual time",
    takes="2 to 6 minutes a policy for a million requests to 1,000 engines",
    arguments="--trace mooncake --engines 1000 --requests 1000000",
    audience="user",
    times="virtual",
)
PoliciesPlan = preset(
    "PoliciesPlan",
    trace=("mooncake", "chats@65536", "agentic@1048576"),
    slow=(0, 1),
    policy=(),
    load=(0.5, 0.75, 0.9, 1.1),
    requests=4_000,
    seeds=3,
    bisections=8,
)
POLICIES = Benchmark(
    "policies",
    "Compare all policies on a simulated fleet in virtual time, with and without a slow engine: "
    "real traces and generated chats, and an oracle.",
    PoliciesPlan,
    measure,
    (_HIGHEST_TTFT, _P90_RATIOS, _HIGHEST_CACHED, TRACES, _BY_LOAD),
    Chart(
        "Mean TTFT; what is above 20 s is cut off",
        (
            replace(
                _OVER_RATE, title="{trace}, engines alike", where=lambda r: not r.keys.get("slow")
            ),
            replace(
                _OVER_RATE, title="{trace}, one engine 3 × slower",
                where=lambda r: r.keys.get("slow") == 1,
            ),
        ),
        split=("trace",),
    ),
    quick={
        "trace": ("mooncake", "chats@65536"), "requests": 1_500, "load": (0.75,), "seeds": 2,
        "bisections": 3,
    },
    losses=partial(losses, {"ttft": SAID["ttft"]}),
    question="how the routing policy changes time to first token on a simulated fleet: Inferway's "
    "policies, those of its peers, published ones, and an oracle",
    takes="27 minutes",
    times="virtual",
)  # fmt: skip
FleetPlan = preset(
    "FleetPlan",
    trace=(
        *("mooncake", "agentic@1048576", "azure@262144"),
        *("mooncake@8388608", "agentic@8388608"),  # more tokens than all prompts have
    ),
    engines=(16,),
    gateways=(1, 4),
    policy=(
        *("round-robin", "least-request", "consistent-hash", LLM_D, "cache-aware", "kv-aware"),
        *(OURS, DEAF, ORACLE),
    ),
    load=(0.75, 0.9),
    seeds=5,
    bisections=5,
)
POLICIES_FLEET = replace(
    POLICIES,
    name="policies-fleet",
    help="Compare policies in front of 16 equal engines behind 1 and 4 gateways in virtual time, "
    "with and without pressure on the caches.",
    plan=FleetPlan,
    chart=Chart(
        f"Each workload at its highest load; ratios above {_FAR} are cut off",
        (
            replace(
                _OVER_RATE, y=("ttft_p90_ratio",), x="trace", x_label=" ",
                y_label=f"p90 TTFT / that of {OURS}", title="gateways: {gateways}", mean=False,
                most=_FAR, where=_is_highest,
            ),
        ),
        split=("gateways",),
    ),
    question="how much KV events gain, with one gateway and with several, in front of many engines",
    takes="25 minutes",
    run_name=lambda plan: _fleet_run_name(plan),
)  # fmt: skip
_BESIDE_ONE = Table(
    "simulations",
    "p90 TTFT divided by that of one gateway with the same policy (95 %), gateways: {gateways}",
    ("policy", "load"), (Column("one_ratio", form="{:.3f}", shown="interval"),), across="trace",
    split=("gateways",), where=lambda row: row.values.get("one_ratio") is not None,
)  # fmt: skip
_BESIDE_ORACLE = replace(
    _BESIDE_ONE,
    title=f"Mean TTFT divided by the {ORACLE}'s (95 %), gateways: {{gateways}}",
    columns=(Column("oracle_ratio", form="{:.3f}", shown="interval"),),
    where=lambda row: row.values.get("oracle_ratio") is not None and row.keys["policy"] != ORACLE,
)
_AT_EACH_LOAD = Plot(
    "simulations", ("oracle_ratio",), x="policy", by="load", x_label=" ",
    y_label=f"mean TTFT / the {ORACLE}'s", title="{trace}", mean=True,
    where=_BESIDE_ORACLE.where,
)  # fmt: skip
POLICIES_GATEWAYS = replace(
    POLICIES_FLEET,
    name="policies-fleet --gateways",
    tables=(_BESIDE_ONE, _BESIDE_ORACLE, TRACES, _BY_LOAD),
    losses=lambda _: [],
    chart=Chart("Several gateways", (_AT_EACH_LOAD,), split=("trace",)),
    question="whether several gateways that tell each other what they do are as good as one",
    takes="5 minutes",
    arguments="1 --gateways 4 --policy expected-ttft --policy expected-ttft+workers …",
)


def _fleet_run_name(plan: SimulatePlan) -> str:
    shares = any(name != alone(name) for name in plan.policy)
    return POLICIES_GATEWAYS.name if shares else POLICIES_FLEET.name


HybridPlan = preset(
    "HybridPlan",
    trace=("mooncake",),
    kv_groups=("full,mamba:align", "full,mamba:align+eagle"),
    policy=(FULL_ALONE, OURS),
    # At this rate round-robin's mean TTFT doubles on eight engines with one group (kv-transfer).
    rate=4.4,
    load=(0.5, 0.9),
    requests=1_500,
    seeds=5,
)
_OF_GROUPS = replace(_OVER_RATE, title="{groups}", log_y=False, most=None, styles={})
HYBRID = replace(
    POLICIES,
    name="policies-hybrid",
    help="Simulate engines of hybrid models behind an index that knows all groups of their KV "
    "caches, and behind one that knows full attention alone, in virtual time.",
    plan=HybridPlan,
    tables=(
        Table(
            "simulations",
            "**{groups}**: the share of prompt tokens that came from a cache; tokens of the mean "
            "prompt that were computed; TTFT in ms; the share of requests whose reuse the index "
            "overestimated, and by how many tokens of the mean prompt. The last columns are "
            f"divided by those of {OURS}: the mean of the seeds' ratios (95 %)",
            ("load", "policy"),
            (
                _CACHED, Column("computed", "computed", "{:,.0f}", "mean alone"),
                Column("ttft_p50", "p50", "{:,.0f}", "mean alone"), _P90,
                Column("overestimated", "overestimated", "{:.1f}%", "mean alone"),
                Column("excess", "excess", "{:,.0f}", "mean alone"),
                Column("computed_ratio", "computed, ratio", "{:.3f}"),
                Column("ttft_p50_ratio", "p50, ratio", "{:.3f}"),
                Column("ttft_p90_ratio", "p90, ratio", "{:.3f}"),
            ),
            split=("groups",),
        ),
        TRACES,
    ),
    chart=Chart(
        "Engines of hybrid models in virtual time",
        (
            replace(_OF_GROUPS, y=("cached",), y_label="prompt tokens from a cache, %"),
            replace(_OF_GROUPS, y=("ttft_p50",), y_label="p50 TTFT, ms"),
            replace(_OF_GROUPS, y=("ttft_p90",), y_label="p90 TTFT, ms"),
        ),
        split=("groups",),
    ),
    quick={"requests": 500, "load": (0.5,), "seeds": 2},
    losses=partial(losses, {name: SAID[name] for name in ("ttft_p50", "ttft_p90")}),
    question="how much it gains that the index knows all groups of KV caches of hybrid models",
    takes="6 minutes",
)  # fmt: skip

SmgPlan = preset(
    "SmgPlan",
    trace=("smg@1200000",),
    engines=(240,),
    gateways=(8,),
    policy=("least-request", "cache-aware", DEAF, OURS, f"{OURS}+peers@20"),
    # its mock worker: 4.3 ms a step, 80,000 tokens a second, 320 of them in a step, 80 requests
    engine=(
        *("step_seconds=0.0043", "decode_seconds=0", "prefill_seconds=0.0000125"),
        *("max_batched_tokens=400", "max_num_seqs=80"),
    ),
    warm_up=0.2,
)
POLICIES_SMG = replace(
    POLICIES,
    name="policies-smg",
    help="Repeat SMG's published experiment in virtual time: 240 engines behind 8 gateways, each "
    "request at any of them.",
    plan=SmgPlan,
    tables=(
        Table(
            "simulations",
            "The share of prompt tokens that came from a cache, of second turns and of all "
            "requests; how the requests of an engine, and the tokens that it computes of prompts, "
            "scatter (standard deviation by mean); TTFT in ms",
            ("policy",),
            (
                Column("returning", "second turns", "{:.1f}%", "mean alone"),
                replace(_CACHED, head="all"),
                Column("scatter", "requests scatter", "{:.3f}", "mean alone"),
                Column("work_scatter", "tokens scatter", "{:.3f}", "mean alone"),
                replace(_TTFT, shown="mean alone"), _P90,
            ),
        ),
        TRACES,
    ),
    chart=Chart("SMG's experiment in virtual time", (_OVER_POLICIES,)),
    quick={"requests": 2_000, "engines": (8,), "policy": (OURS,)},
    losses=partial(losses, {"ttft": SAID["ttft"]}),
    question="how much of the cache several gateways find without a service that they share, and "
    "how evenly they spread requests, in the experiment that SMG published",
    takes="40 minutes",
)  # fmt: skip

GoodputPlan = preset(
    "GoodputPlan",
    trace=("mooncake", "agentic@1048576", "chats@65536"),
    policy=("round-robin", LLM_D_NEW, ORACLE, OURS, HELD),
    load=(0.75, 0.9, 1.1, 1.3),
    seeds=3,
    capacity=True,
)


def goodput_losses(run: Run) -> list[str]:
    """Return where another policy answers more requests within the limits, or sooner below the
    fleet's capacity, beyond chance."""
    found = []
    for row in run.select("simulations"):
        ours = run.find("simulations", **{**row.keys, "policy": HELD})
        more = ratio(row, ours, "good_rate")
        if more is not None and more.low > 1:
            said = f"keeps the limits for {more.shown('{:.3f}')} times as many requests"
            found.append(f"{_words(row)}: {row.keys['policy']} {said}")
        times = ratio(row, ours, "ttft")
        if row.keys["load"] in ("75%", "90%") and times is not None and times.high < 1:
            said = (
                f"the {SAID['ttft']} of {row.keys['policy']} is {times.shown('{:.3f}')} times ours"
            )
            found.append(f"{_words(row)}: {said}")
    return found


_GOOD = Column("good", "within", "{:.1f}%", "mean")
_GOODPUT = replace(_OVER_RATE, y=("good_rate",), y_label="requests within the limits, a second")
POLICIES_GOODPUT = replace(
    POLICIES,
    name="policies-goodput",
    help="Compare how many requests are answered within limits of TTFT and inter-token latency, "
    "below and above what the fleet can do, in virtual time.",
    plan=GoodputPlan,
    tables=(
        Table(
            "simulations",
            "**{trace}**: the share of requests within the limits (95 %), and their number a "
            "second; mean TTFT in ms",
            ("policy",),
            (
                _GOOD, Column("good_rate", "a second", "{:,.2f}", "mean alone"),
                replace(_TTFT, shown="mean alone"),
            ),
            across="load",
            split=("trace",),
        ),
        Table(
            "simulations",
            f"{HELD}, and a bound that no policy can beat: requests within the limits a second, "
            "and mean TTFT in ms",
            ("trace", "load"),
            (
                Column("good_rate", "within", "{:,.2f}", "mean alone"),
                Column("most_good_rate", "bound", "{:,.2f}", "mean alone"),
                replace(_TTFT, shown="mean alone"),
                Column("least_ttft", "bound", "{:,.0f}", "mean alone"),
            ),
            where=lambda row: row.keys["policy"] == HELD,
        ),
        replace(
            TRACES,
            title="Traces: tokens of an engine's cache; the oracle's mean TTFT in ms when idle, "
            "and the rate of 100 % in requests a second",
        ),
    ),
    chart=Chart("Requests within the limits", (_GOODPUT,), split=("trace",)),
    quick={"trace": ("mooncake",), "requests": 1_000, "load": (1.1,), "seeds": 2, "bisections": 3},
    losses=goodput_losses,
    question="how many requests are answered in time if more come than the fleet can do",
    takes="15 minutes",
)  # fmt: skip

KvTransferPlan = preset(
    "KvTransferPlan",
    trace=("mooncake", "agentic@1048576", "azure"),
    engines=(16,),
    policy=(
        *(NEVER, LEARNED, ALWAYS, f"{ALWAYS}@10", f"{ALWAYS}@12"),
        *(f"{THRESHOLD}@10", f"{THRESHOLD}@12"),
    ),
    load=(0.5, 0.9, 1.2),
    requests=3_000,
    seeds=3,
    bisections=5,
)
_OF_LEGS = replace(
    _OVER_RATE, y=("ttft_p90",), y_label="p90 TTFT, ms", most=None,
    styles={LEARNED: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5}},
)  # fmt: skip
KV_TRANSFER = replace(
    POLICIES,
    name="kv-transfer",
    help="Compare in virtual time: prompts that are computed apart from where they are answered if "
    "that costs less, never, always, and by llm-d's threshold.",
    plan=KvTransferPlan,
    tables=(
        *(
            Table(
                "simulations",
                f"{said} divided by that of {LEARNED}, {{trace}}",
                ("policy",),
                (Column(f"{name}_ratio", name, "{:.2f}", "value"),),
                across="load",
                split=("trace",),
            )
            for name, said in SAID_OF_LEGS.items()
        ),
        Table(
            "simulations",
            "**{trace}, engines: {engines}**: p90 TTFT (95 %) and inter-token p99 (95 %) in ms; "
            "the share of requests in two legs, and of prompt tokens that came from a cache",
            ("policy",),
            (
                replace(_P90, shown="mean"),
                Column("itl_p99", "ITL p99", "{:,.1f}", "mean"),
                Column("two_legs", "two legs", "{:.0f}%", "mean alone"),
                _CACHED,
            ),
            across="load",
            split=("trace", "engines"),
        ),
        TRACES,
    ),
    chart=Chart(
        "16 engines in virtual time",
        (_OF_LEGS, replace(_OF_LEGS, y=("itl_p99",), y_label="inter-token p99, ms")),
        split=("trace",),
    ),
    quick={"trace": ("azure",), "requests": 1_000, "load": (0.5,), "seeds": 2, "bisections": 3},
    losses=partial(losses, SAID_OF_LEGS),
    question="whether to move the cache: prefill and decode apart by expected milliseconds, never, "
    "always, or by a threshold",
    takes="15 minutes",
)

simulate, policies, policies_fleet, policies_hybrid, policies_smg, policies_goodput, kv_transfer = (
    benchmark.command()
    for benchmark in (
        *(SIMULATE, POLICIES, POLICIES_FLEET, HYBRID, POLICIES_SMG, POLICIES_GOODPUT, KV_TRANSFER),
    )
)
