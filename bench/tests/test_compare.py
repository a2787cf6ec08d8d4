"""Two runs of a benchmark beside each other: what is a regression, and what is noise."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest
from bench.tests.test_report import MACHINE
from click.testing import CliRunner, Result
from rich.table import Table

from inferway_bench.benchmark import Benchmark
from inferway_bench.cli.output import Output, output_options
from inferway_bench.compare import Change, Comparison, compare_figures
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.results import Figure, Run, load_run, write_run
from inferway_bench.spread import Interval


class Figures(Run, frozen=True):
    """A run that is nothing but its figures."""

    found: list[Figure]

    def figures(self) -> list[Figure]:
        return self.found


def compare(old: Figures, new: Figures) -> Comparison:
    return compare_figures(old, new, old.figures(), new.figures())


def a_run(*found: Figure) -> Figures:
    return Figures(MACHINE, "inferway bench figures", list(found))


def ours(*values: float) -> Figure:
    return Figure("ours", "µs", list(values))


def peer(*values: float) -> Figure:
    return Figure("peer", "µs", list(values), is_ours=False)


def carried(*values: float) -> Figure:
    return Figure("carried", "requests/s", list(values), "higher")


def changed(old: Figure, new: Figure) -> Change:
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
        msgspec.structs.replace(ours(value), within=Interval(value, value / 1.15, value * 1.15))
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
    assert [change.figure.name for change in found.regressions(0.1)] == ["carried"]
    assert "what is not ours takes 2.00 × (s, ms, µs): ours is judged beside that" in found.warnings


def test_peers_do_not_regress() -> None:
    assert compare(a_run(peer(1, 1, 1)), a_run(peer(9, 9, 9))).regressions(0.1) == []


def test_only_what_both_runs_have_is_compared() -> None:
    found = compare(a_run(ours(1), carried(2)), a_run(ours(1), peer(3)))

    assert [change.figure.name for change in found.changes] == ["ours"]


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


def measured(run: Figures, old: Figures, folder: Path, *arguments: str) -> Result:
    """What a benchmark's command says that finds `run`."""
    (folder / "old.json").write_bytes(write_run("figures", old))
    picture = Picture("figures", "A picture", [[Panel("x", "y", [Line("ours", [0], [1])])]])
    benchmark = Benchmark(
        "figures", Figures, lambda _: [Table("a table")], lambda _: "a section\n",
        lambda _: [picture],
    )  # fmt: skip

    @click.command()
    @output_options("figures")
    def figures(output: Output) -> None:
        output.measure(benchmark, lambda _: run)

    return CliRunner().invoke(figures, ["--compare", str(folder / "old.json"), *arguments])


def test_a_command_that_finds_something_worse_ends_with_status_1(tmp_path: Path) -> None:
    result = measured(a_run(ours(2, 2, 2)), a_run(ours(1, 1, 1)), tmp_path)

    assert result.exit_code == 1
    assert "a table" in result.stdout
    assert "1 of 1 are worse" in result.stderr


@pytest.mark.parametrize(("now", "tolerance"), [(1.0, "0.1"), (0.5, "0"), (2.0, "1.5")])
def test_a_command_that_finds_nothing_worse_ends_well(
    now: float, tolerance: str, tmp_path: Path
) -> None:
    old = a_run(ours(1, 1, 1))

    result = measured(a_run(ours(now, now, now)), old, tmp_path, "--tolerance", tolerance)

    assert result.exit_code == 0, result.output


def test_a_file_that_cannot_be_compared_with_is_told_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.json").write_text("{}\n")

    result = measured(a_run(), a_run(), tmp_path, "--compare", str(tmp_path / "bad.json"))

    assert result.exit_code == 1
    assert "bad.json: not a stored Figures" in result.output


def test_what_is_saved_can_be_compared_with_and_the_document_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    run = a_run(ours(1, 1, 1))

    saved = measured(run, run, tmp_path, "--save", str(tmp_path), "--json")

    assert saved.exit_code == 0, saved.output
    assert (tmp_path / "results" / "figures.json").read_bytes() == saved.stdout_bytes
    assert "| `inferway bench dataplane` |" in (tmp_path / "benchmarks/README.md").read_text()
    assert load_run(tmp_path / "results" / "figures.json", Figures) == run


def test_a_run_is_drawn_where_it_was_asked_for(tmp_path: Path) -> None:
    result = measured(a_run(), a_run(), tmp_path, "--plot", str(tmp_path))

    assert result.exit_code == 0, result.output
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures.svg").is_file()
