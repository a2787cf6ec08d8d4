from __future__ import annotations

from pathlib import Path

import tokenizers

from inferway.config import EngineSettings
from inferway.doctor.facts import EngineReport
from inferway.doctor.tokenizers import sources, try_tokenizers
from inferway.fleet.engine_facts import EngineFacts, ModelCard


def test_adapters_need_no_tokenizer_of_their_own() -> None:
    cards = (ModelCard("base", "/models/base", None, 4096), ModelCard("lora", "/l", "base", None))
    engine = EngineReport(EngineSettings(url="http://e:1"), told=EngineFacts(cards, (), 16, ()))

    assert sources([engine]) == {"base": "/models/base"}


def test_an_engine_that_did_not_answer_asks_for_nothing() -> None:
    assert sources([EngineReport(EngineSettings(url="http://e:1"), error="refused")]) == {}


def test_a_directory_with_a_tokenizer_is_loaded(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))

    (found,) = try_tokenizers({"m": str(tmp_path)}, None)

    assert (found.source, found.error) == (str(tmp_path), None)


def test_a_directory_without_one_is_an_error(tmp_path: Path) -> None:
    (found,) = try_tokenizers({"m": str(tmp_path)}, None)

    assert "no tokenizer.json" in (found.error or "")
