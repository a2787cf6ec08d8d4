"""What `inferway bench autoscale` measures and says."""

from __future__ import annotations

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.autoscale.plan import AutoscalePlan
from inferway_bench.autoscale.report import AUTOSCALE, goals, losses
from inferway_bench.autoscale.run import IN_FLIGHT, ORACLE, SLO
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row


def row(scaling: str, in_time: float, hours: float, ratio: float = 1.0) -> Row:
    keys = {"trace": "t", "scaling": scaling}
    return Row("days", keys, {"in_time": in_time, "engine_hours": hours, "ratio": ratio})


def test_the_signal_is_judged_by_the_slo_and_the_oracle() -> None:
    rows = [row(ORACLE, 90, 10), row(SLO, 89, 11.5, 1.15), row(IN_FLIGHT, 91, 11)]
    run = a_run("autoscale", rows, plan={"share": 0.9})

    held, hours = goals(run)
    assert not held.is_met
    assert not hours.is_met
    assert losses(run) == [
        "t: 1.05 times the engine-hours of in flight with the number that was found for this very"
        " day"
    ]


def test_a_trace_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(BenchError, match="'nobodys': known: azure, mooncake, agentic"):
        AutoscalePlan().setup("nobodys")


@pytest.mark.slow
def test_the_benchmark_in_miniature() -> None:
    plan = AutoscalePlan(
        trace=("agentic@1048576",), requests=0.05, minutes=20, warm_up=2, most=4, refine=1,
        processes=1, bisections=2,
    )  # fmt: skip

    run = AUTOSCALE.run(plan, unseen)

    text = AUTOSCALE.markdown(run)
    assert all(f"| {name} |" in text for name in (ORACLE, SLO, IN_FLIGHT, "fixed"))
    assert len(AUTOSCALE.goals(run)) == 2
    for each in run.select("days"):
        assert 0 < each.median("engine_hours") <= 4 * plan.minutes / 60
