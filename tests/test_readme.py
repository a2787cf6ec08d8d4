"""Every command of README.md runs as it stands, in its order, and prints what README.md shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.reader import ROOT, Reader, blocks, shape

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with ExitStack() as stack:
        reader = Reader(README, tmp_path_factory.mktemp("readme"), stack)
        reader.type_all()
        yield reader


@pytest.mark.tools
def test_every_command_runs(reader: Reader) -> None:
    assert list(reader.printed) == [block for block in blocks(README) if block.is_run]
    assert len(reader.printed) >= 5


@pytest.mark.tools
def test_what_is_shown_is_printed_but_for_its_figures(reader: Reader) -> None:
    assert reader.shown()
    for shown, printed in reader.shown():
        assert shape(printed) == shape(shown)


@pytest.mark.tools
def test_the_long_prompt_hits_the_second_time_as_is_shown(reader: Reader) -> None:
    ((shown, printed),) = reader.shown()
    expected = re.findall(r"blocks: (\d+)", shown)

    for text in (shown, printed):
        engines = re.findall(r"x-inferway-engine: (\S+)", text)
        first, second = (float(seconds) for seconds in re.findall(r"seconds: (\S+)", text))

        assert engines in (["127.0.0.1:8101"] * 2, ["127.0.0.1:8102"] * 2)
        assert re.findall(r"blocks: (\d+)", text) == expected
        assert second < first / 2


@pytest.mark.tools
def test_a_rule_of_the_long_prompt_has_as_many_tokens_as_it_says(reader: Reader) -> None:
    usage = json.loads((reader.directory / "answer.json").read_text())["usage"]

    assert f"40 rules of about {usage['prompt_tokens'] // 40} tokens each" in README.read_text()


def test_each_vllm_engine_has_a_simulated_one_on_its_port() -> None:
    ports = {
        command: [b.option("--port") for b in blocks(README) if b.text.startswith(command)]
        for command in ("vllm serve", "inferway simulate")
    }

    assert ports["vllm serve"] == ports["inferway simulate"] != []
