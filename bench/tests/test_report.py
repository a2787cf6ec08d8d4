"""What all benchmarks share: how runs are kept, and that the document is made of what is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.tests.runs import MACHINE as MACHINE

from inferway_bench.benchmark import Benchmark
from inferway_bench.catalog import BENCHMARKS
from inferway_bench.compare import compare_figures
from inferway_bench.machine import this_machine
from inferway_bench.pages import rendered
from inferway_bench.processes import BenchError
from inferway_bench.results import Figure, Run, load_run, read_run, write_run
from inferway_bench.sheets import Sheet, told_by

DOCS = Path(__file__).parents[2] / "docs"


class Part(msgspec.Struct, frozen=True):
    name: str
    us: list[float]


class Plan(msgspec.Struct, frozen=True):
    repeats: dict[int, int]


class SmallRun(Run, frozen=True):
    """A list of measurements, one that may be missing, and what is no measurement."""

    plan: Plan
    notes: list[str]
    parts: list[Part]
    last: Part | None = None

    @property
    def seeds(self) -> list[int]:
        return [7]

    def figures(self) -> list[Figure]:
        return [Figure(part.name, "µs", part.us) for part in self.parts]


RUN = SmallRun(
    machine=MACHINE,
    command="inferway bench small",
    plan=Plan({16: 3}),
    notes=["a note"],
    parts=[Part("parse", [1.0, 2.5]), Part("render", [3.0])],
    last=Part("all", []),
)


def test_a_run_is_a_head_and_a_line_for_each_measurement() -> None:
    head, *lines = map(msgspec.json.decode, write_run("small", RUN).splitlines())

    assert (head["benchmark"], head["seeds"]) == ("small", [7])
    assert head["machine"]["commit"] == "abc"
    assert lines == [
        {"parts": {"name": "parse", "us": [1.0, 2.5]}},
        {"parts": {"name": "render", "us": [3.0]}},
        {"last": {"name": "all", "us": []}},
    ]


@pytest.mark.parametrize("run", [RUN, msgspec.structs.replace(RUN, parts=[], last=None)])
def test_what_is_written_can_be_read_again(run: SmallRun) -> None:
    assert read_run(write_run("small", run), SmallRun) == run


def test_a_file_that_is_no_such_run_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"machine": 5}\n')

    with pytest.raises(BenchError, match=r"old\.json: not a stored SmallRun"):
        load_run(path, SmallRun)


def test_this_machine_is_described() -> None:
    machine = this_machine()

    assert machine.cores >= 1
    assert "uvloop" in machine.packages


STORED = [
    benchmark
    for benchmark in BENCHMARKS
    if isinstance(benchmark, Benchmark) and benchmark.results(DOCS).is_file()
]


@pytest.mark.parametrize("benchmark", STORED, ids=lambda benchmark: str(benchmark.file))
class TestStored:
    """The results in docs/results."""

    def test_says_whose_it_is_and_is_read_whole(self, benchmark: Benchmark[Any]) -> None:
        text = benchmark.results(DOCS).read_bytes()
        run = benchmark.load(DOCS)

        assert msgspec.json.decode(text.partition(b"\n")[0])["benchmark"] == benchmark.name
        assert read_run(write_run(benchmark.name, run), benchmark.kind) == run

    def test_has_figures_of_names_that_differ(self, benchmark: Benchmark[Any]) -> None:
        names = [figure.name for figure in benchmark.load(DOCS).figures()]

        assert names
        assert len(set(names)) == len(names)

    def test_says_what_it_answers_and_how_long_it_takes(self, benchmark: Benchmark[Any]) -> None:
        assert benchmark.question
        assert benchmark.takes

    def test_is_not_worse_than_itself(self, benchmark: Benchmark[Any]) -> None:
        run = benchmark.load(DOCS)

        assert compare_figures(run, run, run.figures(), run.figures()).regressions(0.0) == []


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    return rendered(DOCS, BENCHMARKS)


def test_every_table_of_the_document_is_what_the_stored_results_say(
    pages: dict[Path, str],
) -> None:
    for path, text in pages.items():
        assert path.read_text() == text, f"{path.name}: the cure: inferway bench docs"


def test_the_document_shows_every_picture_beside_the_results(pages: dict[Path, str]) -> None:
    shown = set(re.findall(r"\]\(\.\./results/(.*\.svg)\)", "".join(pages.values())))

    assert shown == {path.name for path in (DOCS / "results").glob("*.svg")}


def test_no_page_outlives_its_result(pages: dict[Path, str]) -> None:
    made = {path for path in pages if path.parent.name == "benchmarks"}

    assert set((DOCS / "benchmarks").glob("*.md")) - made == {DOCS / "benchmarks/microseconds.md"}


def small_in(docs: Path) -> Benchmark[SmallRun]:
    """A benchmark whose run is stored in `docs`."""
    (docs / "results").mkdir()
    small = told_by("small", SmallRun, lambda _: [], lambda _: [], pictures=lambda _: [])
    small.results(docs).write_bytes(write_run("small", RUN))
    return small


def test_a_page_without_a_place_for_its_result_is_refused(tmp_path: Path) -> None:
    small = small_in(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/small.md").write_text("# Title\n")

    with pytest.raises(BenchError, match="begin: inferway bench small"):
        rendered(tmp_path, [small])


def test_a_page_that_is_not_there_is_begun(tmp_path: Path) -> None:
    made = rendered(tmp_path, [small_in(tmp_path)])

    assert {path.name for path in made} == {"README.md", "small.md"}
    assert "at commit abc" in made[tmp_path / "benchmarks/small.md"]


def sheets(run: SmallRun) -> list[Sheet]:
    rows = [[part.name, f"{part.us[0]:.1f}"] for part in run.parts]
    return [
        Sheet("Parts", ("part", "µs"), rows[:1], notes=["of one"]),
        Sheet("Others", ("part", "µs"), rows[1:], in_details=True),
    ]


def test_the_document_has_the_tables_and_the_page_of_details_has_more() -> None:
    small = told_by("small", SmallRun, lambda _: ["About it."], sheets, pictures=lambda _: [])

    text = small.markdown(RUN)
    assert text.startswith(
        "Measured 2026-01-02 03:04 UTC by `inferway bench small` at commit abc, seed 7.\n"
    )
    assert text.endswith(
        "About it.\n\nParts:\n\n| part | µs |\n| --- | ---: |\n| parse | 1.0 |\n\n- of one\n"
    )
    assert small.details is not None
    assert small.details(RUN).startswith(text.removesuffix("\n"))
    assert "| render | 3.0 |" in small.details(RUN)
    assert [table.title for table in small.tables(RUN)] == ["Parts"]


def test_a_quick_run_is_called_a_look() -> None:
    small = told_by("small", SmallRun, lambda _: [], sheets, pictures=lambda _: [])
    quick = msgspec.structs.replace(RUN, command="inferway bench small --quick")

    assert "not a result" in small.markdown(quick)
    assert "not a result" not in small.markdown(RUN)
