from __future__ import annotations

from pathlib import Path

import pytest
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


IN_PLACE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
IN_FRONT = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DROPPING = (
    "{{ messages[0].content }}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "does"),
    [
        (IN_PLACE, "keeps"),
        (REFUSING, "refuses"),
        (IN_FRONT, "front"),
        (DROPPING, "drops"),
        (None, None),
        ("{% endfor %}", None),
    ],
)
def test_what_a_template_does_with_later_system_messages_is_tried(
    tmp_path: Path, template: str | None, does: str | None
) -> None:
    model = tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)

    (found,) = try_tokenizers({"m": str(tmp_path)}, None)

    assert (found.error, found.inline_system) == (None, does)


def test_a_directory_without_one_is_an_error(tmp_path: Path) -> None:
    (found,) = try_tokenizers({"m": str(tmp_path)}, None)

    assert "no tokenizer.json" in (found.error or "")
