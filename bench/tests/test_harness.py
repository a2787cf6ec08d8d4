"""From a plan to flags, and from rows to tables, pictures, files and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from bench.tests.runs import a_run
from click.testing import CliRunner, Result

from inferway_bench.cli import benchmarks
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.pages import rendered, results_of
from inferway_bench.plotting import Chart, Plot, drawn
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.rows import (
    Column,
    Findings,
    Row,
    Table,
    load_run,
    read_run,
    shown_tables,
    write_run,
)
from inferway_bench.spread import Interval, three_digits

DOCS = Path(__file__).parents[2] / "docs"


def words(text: str) -> tuple[str, ...]:
    if not text:
        raise click.BadParameter("expected words")
    return tuple(text.split(","))


class SmallPlan(msgspec.Struct, frozen=True):
    repeats: Annotated[int, flag("Load it this number of times.", ge=1)] = 3
    rate: Annotated[float | None, flag("At this rate.", gt=0)] = None
    kind: Annotated[Literal["a", "b"], flag("Of this kind.")] = "a"
    engines: Annotated[tuple[int, ...], flag("So many.", name="--engine")] = (1, 2)
    words: Annotated[tuple[str, ...], flag("These.", parse=words, metavar="WORDS")] = ()
    peers: Annotated[bool, flag("Without others.")] = True
    real: Annotated[bool, flag("With real ones.")] = False
    data: Annotated[Path | None, flag("Read this.")] = None
    warm_up: int = 5

    def __post_init__(self) -> None:
        if self.real and self.rate:
            raise ValueError("--real and --rate: only one of them")


ROWS = [
    Row("cpu", {"router": "ours", "case": "short"}, {"us": [10.0, 11.0, 12.0]}),
    Row("cpu", {"router": "ours", "case": "long"}, {"us": [1_000.0, 1_100.0, 1_400.0]}),
    Row("cpu", {"router": "peer", "case": "short"}, {"us": [5.0, 6.0, 7.0]}, is_ours=False),
    Row(
        "growth",
        {"engines": 1_000, "load": "50%"},
        {"ratio": Interval(1.5, 1.0, 2.0), "none": None},
    ),
    Row("growth", {"engines": 16, "load": "75%"}, {"ratio": 3.0, "of": "words"}),
]
TABLES = [
    Table(
        "cpu", "CPU of {repeats} repeats", ["router"],
        [Column("us", form="{:,.0f}", shown="range")],
        across="case", notes=["with {other} others"],
    ),
    Table(
        "growth", "At {load}", ["engines"],
        [Column("ratio", "ratio (95 %)", "{:.2f}"), Column("none"), Column("of")],
        split=["load"], in_details=True,
    ),
]  # fmt: skip
CHART = Chart("{other} others", [Plot("cpu", ["us"], "case", "router", y_label="CPU, µs")])


def measured(plan: SmallPlan, on_step: OnStep) -> Findings:
    on_step("1 of 2")
    if plan.kind == "b":
        raise BenchError("kind b: not there; fix: kind a")
    return Findings(
        rows=ROWS, about=["About it."], facts={"other": 7}, notes={"growth": ["said"]},
        seeds=[1, 2], is_whole=plan.rate is None,
    )  # fmt: skip


SMALL = Benchmark(
    "small thing", "Measure a small thing.", SmallPlan, measured, TABLES, CHART,
    quick={"repeats": 1}, losses=lambda _: ["the peer is ahead"],
    question="how small", takes="no time",
)  # fmt: skip


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(SMALL.command(), arguments)


def plan_of(*arguments: str) -> SmallPlan:
    """The plan that these arguments make."""
    seen: list[SmallPlan] = []

    def keep(plan: SmallPlan, _: OnStep) -> Findings:
        seen.append(plan)
        return Findings(rows=[])

    kept: Any = Benchmark("x", "", SmallPlan, keep, [], quick={"repeats": 1, "warm_up": 0})
    result = CliRunner().invoke(kept.command(), arguments)
    assert result.exit_code == 0, result.output
    return seen[0]


class TestFlags:
    def test_a_field_is_as_its_flag_says_and_else_as_the_plan(self) -> None:
        assert plan_of() == SmallPlan()
        assert plan_of("--repeats", "9", "--rate", "2.5", "--kind", "a", "--no-peers") == SmallPlan(
            repeats=9, rate=2.5, peers=False
        )
        assert plan_of("--engine", "4", "--engine", "8", "--words", "x,y", "--real") == SmallPlan(
            engines=(4, 8), words=("x", "y"), real=True
        )

    def test_a_quick_run_has_its_own_defaults_and_takes_flags(self) -> None:
        assert plan_of("--quick") == SmallPlan(repeats=1, warm_up=0)
        assert plan_of("--quick", "--repeats", "2") == SmallPlan(repeats=2, warm_up=0)

    def test_help_has_descriptions_defaults_and_the_audience(self) -> None:
        text = " ".join(asked("--help").output.split())

        assert "Load it this number of times. [default: 3]" in text
        assert "So many. Repeat the flag for more. [default: 1, 2]" in text
        assert "--words WORDS" in text
        assert "for the maintainers of Inferway" in text
        assert "warm-up" not in text

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--repeats", "0"], "expected a whole number from 1 on"),
            (["--words", ""], "expected words"),
            (["--kind", "c"], "'c' is not one of"),
            (["--real", "--rate", "2"], "--real and --rate: only one of them"),
        ],
    )
    def test_a_wrong_value_is_a_usage_error(self, arguments: list[str], said: str) -> None:
        result = asked(*arguments)

        assert result.exit_code == 2
        assert said in result.output


RUN = a_run(
    "small thing",
    Findings(rows=ROWS, about=["About it."], facts={"other": 7}, notes={"growth": ["said"]}),
    plan={"repeats": 3},
)


class TestTables:
    def test_the_page_has_every_table_and_its_notes(self) -> None:
        _, _, about, *lines = SMALL.markdown(RUN).splitlines()

        assert about == "About it."
        assert [line for line in lines if line] == [
            "CPU of 3 repeats:",
            "| router | short | long |",
            "| --- | ---: | ---: |",
            "| ours | 11 (10 to 12) | 1,100 (1,000 to 1,400) |",
            "| peer | 6 (5 to 7) |  |",
            "- with 7 others",
            "At 50%:",
            "| engines | ratio (95 %) |",
            "| --- | ---: |",
            "| 1,000 | 1.50 (1.00 to 2.00) |",
            "At 75%:",
            "| engines | ratio (95 %) | of |",
            "| --- | ---: | ---: |",
            "| 16 | 3.00 | words |",
            "- said",
            f"![7 others]({'..'}/results/small_thing.svg)",  # from docs/benchmarks
        ]

    def test_a_table_without_rows_is_left_out(self) -> None:
        assert list(shown_tables(a_run("small thing", []), TABLES)) == []

    def test_repeats_are_shown_as_the_column_says(self) -> None:
        repeats = [1.0, 2.0, 3.0, 4.0, 10.0]

        assert Column("x").cell(repeats) == "3.0"
        assert Column("x", shown="range").cell(repeats) == "3.0 (1.0 to 10.0)"
        assert Column("x", shown="interval").cell(repeats).startswith("3.0 (1.0 to")
        assert Column("x", shown="mean", form=three_digits).cell(repeats).startswith("4.00 (")
        assert Column("x", shown="range").cell([2.5]) == "2.5"

    def test_a_quick_run_is_called_a_look(self) -> None:
        quick = msgspec.structs.replace(RUN, command="inferway bench small --quick")

        assert "not a result" in SMALL.markdown(quick)
        assert "not a result" not in SMALL.markdown(RUN)

    def test_virtual_time_says_that_the_machine_does_not_matter(self) -> None:
        run = msgspec.structs.replace(RUN, times="virtual")

        assert SMALL.markdown(run).startswith("Simulated 2026-01-02 03:04 UTC by")


class TestChart:
    def test_a_key_of_words_makes_ticks_and_another_key_lines(self) -> None:
        picture = drawn(RUN, CHART, "small")
        [[panel]] = picture.rows
        ours, peer = panel.lines

        assert (picture.title, panel.ticks, panel.y) == ("7 others", ["short", "long"], "CPU, µs")
        assert (ours.label, list(ours.xs), peer.label, list(peer.xs)) == (
            "ours",
            [0, 1],
            "peer",
            [0],
        )

    def test_columns_over_a_number_are_lines_and_groups_rows_of_panels(self) -> None:
        rows = [
            Row("t", {"w": w, "n": n}, {"a": n * 1.0, "b": [1.0, 2.0]})
            for w in "xy"
            for n in (1, 2)
        ]
        chart = Chart("", [Plot("t", ["a", "b"], "n", title="{w}", levels={"most": "top"})], ["w"])
        picture = drawn(a_run("small", Findings(rows=rows, facts={"top": 5})), chart, "small")

        assert [row[0].title for row in picture.rows] == ["x", "y"]
        assert [line.label for line in picture.rows[0][0].lines] == ["a", "b"]
        assert picture.rows[0][0].levels == {"most": 5.0}
        assert picture.one_legend

    def test_columns_without_an_x_stand_side_by_side(self) -> None:
        rows = [Row("t", {"router": r}, {"p50": 1.0, "p99": 3.0}) for r in ("a", "b")]
        chart = Chart("", [Plot("t", ["p50", "p99"], by="router")])
        [[panel]] = drawn(a_run("small", rows), chart, "small").rows

        assert panel.ticks == ["p50", "p99"]
        assert [(line.label, list(line.ys)) for line in panel.lines] == [
            ("a", [1.0, 3.0]),
            ("b", [1.0, 3.0]),
        ]


class TestFiles:
    def test_a_run_is_a_head_and_a_line_for_each_row(self) -> None:
        head, *lines = map(msgspec.json.decode, write_run(RUN).splitlines())

        assert (head["benchmark"], head["plan"], "rows" in head) == (
            "small thing",
            {"repeats": 3},
            False,
        )
        assert len(lines) == len(ROWS)
        assert lines[2]["is_ours"] is False

    def test_what_is_written_can_be_read_again(self) -> None:
        assert read_run(write_run(RUN)) == RUN

    def test_a_file_that_is_no_run_is_refused_with_its_name(self, tmp_path: Path) -> None:
        path = tmp_path / "old.json"
        path.write_text('{"machine": 5}\n')

        with pytest.raises(BenchError, match=r"old\.json: not a stored run"):
            load_run(path)


class TestCommand:
    def test_a_run_is_measured_and_shown(self) -> None:
        result = asked()

        assert result.exit_code == 0, result.output
        assert "CPU of 3 repeats" in result.stdout
        assert "At 50%" not in result.stdout
        assert "About it." in result.stdout

    def test_json_is_the_run(self, tmp_path: Path) -> None:
        result = asked("--json", "--data", str(tmp_path), "--repeats", "5")
        run = read_run(result.stdout_bytes)

        assert (run.benchmark, run.seeds, run.rows) == ("small thing", [1, 2], ROWS)
        assert (run.plan["repeats"], run.plan["data"]) == (5, tmp_path.name)

    def test_an_error_of_the_measurement_ends_it_with_the_cure(self) -> None:
        result = asked("--kind", "b")

        assert (result.exit_code, result.output.lstrip()) == (
            1,
            "Error: kind b: not there; fix: kind a\n",
        )

    def test_an_interrupted_run_is_shown_and_says_so_by_its_status(self) -> None:
        result = asked("--rate", "2")

        assert result.exit_code == 130
        assert "CPU of 3 repeats" in result.stdout

    def test_save_writes_a_file(self, tmp_path: Path) -> None:
        asked("--save", str(tmp_path / "run.json"))

        assert load_run(tmp_path / "run.json").rows == ROWS

    def test_save_in_a_folder_writes_the_result_and_the_picture(self, tmp_path: Path) -> None:
        result = asked("--save", str(tmp_path))

        assert result.exit_code == 0, result.output
        assert load_run(results_of("small thing", tmp_path)).rows == ROWS
        assert (tmp_path / "results/small_thing.svg").is_file()
        assert (tmp_path / "benchmarks/README.md").is_file()

    def test_plot_draws(self, tmp_path: Path) -> None:
        asked("--plot", str(tmp_path))

        assert {path.name for path in tmp_path.iterdir()} == {"small_thing.png", "small_thing.svg"}


class TestPages:
    def test_a_page_is_made_of_the_stored_run(self, tmp_path: Path) -> None:
        (tmp_path / "results").mkdir()
        results_of(SMALL.name, tmp_path).write_bytes(write_run(RUN))
        pages = rendered(tmp_path, [SMALL])

        assert SMALL.markdown(RUN) in pages[tmp_path / "benchmarks/small_thing.md"]
        index = pages[tmp_path / "benchmarks/README.md"]
        assert "- small thing, 2026-01-02: the peer is ahead" in index

    def test_a_page_without_a_place_for_its_result_is_refused(self, tmp_path: Path) -> None:
        for name in ("results", "benchmarks"):
            (tmp_path / name).mkdir()
        results_of(SMALL.name, tmp_path).write_bytes(write_run(RUN))
        (tmp_path / "benchmarks/small_thing.md").write_text("# Title\n")

        with pytest.raises(BenchError, match="begin: inferway bench small thing"):
            rendered(tmp_path, [SMALL])


STORED = [one for one in benchmarks() if results_of(one.name, DOCS).is_file()]


@pytest.mark.parametrize("one", STORED, ids=lambda one: str(one.name))
class TestStored:
    """The results in docs/results."""

    def test_says_whose_it_is_and_is_read_whole(self, one: Benchmark[Any]) -> None:
        path = results_of(one.name, DOCS)
        run = load_run(path)

        assert run.benchmark == one.name
        assert read_run(write_run(run)) == run

    def test_every_row_is_shown(self, one: Benchmark[Any]) -> None:
        run = load_run(results_of(one.name, DOCS))
        drawn_tables = {plot.table for plot in one.chart.plots} if one.chart is not None else set()

        assert {row.table for row in run.rows} <= {
            table.name for table in one.tables
        } | drawn_tables

    def test_says_what_it_answers_and_how_long_it_takes(self, one: Benchmark[Any]) -> None:
        assert one.question
        assert one.takes
