"""Two runs of a benchmark beside each other: what is a regression, and what is noise."""

from __future__ import annotations

import msgspec
import pytest
from bench.tests import runs
from bench.tests.runs import MACHINE

from inferway_bench.compare import Change, Comparison
from inferway_bench.compare import compare as compare_by
from inferway_bench.rows import Column, Row, Run, Table
from inferway_bench.spread import Interval

TABLES = [
    Table(
        "figures", "Figures", ["of"],
        [Column("us", better="lower", unit="µs"), Column("rate", better="higher", unit="/s")],
    )
]  # fmt: skip


def a_run(*rows: Row) -> Run:
    return runs.a_run("figures", list(rows))


def compare(old: Run, new: Run) -> Comparison:
    return compare_by(old, new, TABLES)


def ours(*values: float) -> Row:
    return Row("figures", {"of": "ours"}, {"us": list(values)})


def peer(*values: float) -> Row:
    return Row("figures", {"of": "peer"}, {"us": list(values)}, is_ours=False)


def carried(*values: float) -> Row:
    return Row("figures", {"of": "carried"}, {"rate": list(values)})


def changed(old: Row, new: Row) -> Change:
    [change] = compare(a_run(old), a_run(new)).changes
    return change


def test_a_figure_is_compared_by_its_medians() -> None:
    change = changed(ours(10, 11, 30), ours(22, 21, 90))

    assert (change.old, change.new, change.ratio.value) == (11, 22, 2)


def test_what_takes_longer_by_more_than_tolerance_and_noise_is_a_regression() -> None:
    change = changed(ours(10, 10.1, 10.2, 10), ours(12, 12.1, 12.2, 12))

    assert change.is_regression(0.1)
    assert not change.is_regression(0.3)


def test_what_repeats_vary_by_is_no_regression() -> None:
    change = changed(ours(5, 10, 20, 9), ours(6, 12, 25, 13))

    assert not change.is_beyond_noise
    assert not change.is_regression(0.1)


def test_of_what_is_better_when_higher_less_is_worse() -> None:
    assert changed(carried(100, 101, 99), carried(50, 51, 49)).is_regression(0.1)
    assert not changed(carried(100, 101, 99), carried(200, 201, 199)).is_regression(0.1)


@pytest.mark.parametrize(("new", "is_worse"), [(12.0, False), (14.0, True)])
def test_a_single_value_that_says_how_it_varies_is_judged_by_that(
    new: float, is_worse: bool
) -> None:
    """A factor of 1.15 to each side of both: of 1.22 together."""
    before, now = (
        Row("figures", {}, {"us": Interval(value, value / 1.15, value * 1.15)})
        for value in (10.0, new)
    )

    change = changed(before, now)

    assert change.has_noise
    assert change.ratio.value == pytest.approx(new / 10)
    assert change.is_regression(0.1) is is_worse


def test_repeats_of_which_some_are_nothing_say_no_interval() -> None:
    change = changed(ours(0, 2, 4, 2), ours(0, 4, 8, 4))

    assert (change.worse.low, change.worse.value, change.worse.high) == (2, 2, 2)
    assert not change.has_noise


def test_a_single_value_is_judged_by_the_tolerance_alone_and_said_to_have_no_noise() -> None:
    change = changed(ours(10), ours(13))

    assert not change.has_noise
    assert change.is_regression(0.1)


def test_ours_is_judged_beside_what_the_machine_does_to_others() -> None:
    before, now = a_run(ours(10, 10, 10), peer(20, 20, 20)), a_run(ours(20, 20, 20), peer(40, 40))

    found = compare(before, now)

    assert found.drift == {"µs": 2.0}
    assert found.changes[0].ratio.value == 2
    assert found.changes[0].worse.value == 1
    assert found.regressions(0.1) == []
    assert "what is not ours takes 2.00 × (µs): ours is judged beside that" in found.warnings


def test_without_peers_times_are_judged_beside_the_machines_yardstick() -> None:
    slow = msgspec.structs.replace(MACHINE, yardstick_us=[6.0, 6.0, 6.0])
    fast = msgspec.structs.replace(MACHINE, yardstick_us=[2.0, 3.0, 9.0])
    before = msgspec.structs.replace(a_run(ours(10, 10, 10), carried(9, 9, 9)), machine=fast)
    now = msgspec.structs.replace(a_run(ours(20, 20, 20), carried(4, 4, 4)), machine=slow)

    found = compare(before, now)

    assert [change.worse.value for change in found.changes] == [1, 9 / 4]
    assert [change.figure.name for change in found.regressions(0.1)] == ["figures, carried, rate"]
    assert "what is not ours takes 2.00 × (s, ms, µs): ours is judged beside that" in found.warnings


def test_peers_do_not_regress() -> None:
    assert compare(a_run(peer(1, 1, 1)), a_run(peer(9, 9, 9))).regressions(0.1) == []


def test_only_what_both_runs_have_is_compared() -> None:
    found = compare(a_run(ours(1), carried(2)), a_run(ours(1), peer(3)))

    assert [change.figure.name for change in found.changes] == ["figures, ours, us"]


def test_what_was_nothing_has_no_ratio_and_is_left_out() -> None:
    assert compare(a_run(ours(0, 0, 0)), a_run(ours(1, 1, 1))).changes == []


def test_another_machine_other_versions_and_a_busy_one_are_warned_of() -> None:
    other = msgspec.structs.replace(
        MACHINE, cpu="Other CPU", packages={"uvloop": "0.23"}, load_before=3.5
    )
    now = msgspec.structs.replace(a_run(ours(1)), machine=other)

    assert compare(a_run(ours(1)), now).warnings == [
        "cpu: Some CPU then, Other CPU now",
        "uvloop: 0.22 then, 0.23 now",
        "the machine was busy now: load average 3.5",
    ]


def test_a_command_is_another_by_what_it_measures_and_not_by_what_it_writes() -> None:
    old = a_run(ours(1))
    same = msgspec.structs.replace(old, command="inferway bench figures --save docs --json")
    other = msgspec.structs.replace(old, command="inferway bench figures --quick --plot here")

    assert compare(old, same).warnings == []
    assert compare(old, other).warnings == [
        "another command: `inferway bench figures` then, `inferway bench figures --quick` now"
    ]
