"""The flags of `inferway bench peers` that are more than numbers."""

from __future__ import annotations

from click.testing import CliRunner

from inferway_bench.cli import bench
from inferway_bench.cli.peers import chosen
from inferway_bench.routers import Inferway, Router

ROUTERS: list[Router] = [Inferway(scoring=True), Inferway(scoring=False)]


def names(*only: str) -> list[str]:
    return [router.label for router in chosen(ROUTERS, only)]


def test_a_whole_name_means_that_router_alone() -> None:
    assert names("inferway serve") == ["inferway serve"]
    assert names("inferway") == ["inferway serve", "inferway serve --no-scoring"]
    assert names("no-scoring") == ["inferway serve --no-scoring"]
    assert names() == ["inferway serve", "inferway serve --no-scoring"]


def test_a_router_that_is_not_there_is_said() -> None:
    result = CliRunner().invoke(bench, ["peers", "--no-peers", "--only", "nginx"])

    assert result.exit_code == 2
    assert "--only nginx: no such router" in result.output


def test_more_needs_what_was_before() -> None:
    result = CliRunner().invoke(bench, ["peers", "--more"])

    assert result.exit_code == 2
    assert "where --save writes" in result.output
