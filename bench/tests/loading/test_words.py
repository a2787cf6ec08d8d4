"""Text of a given number of tokens."""

from __future__ import annotations

import pytest
from tests.stored import tokenizer_json
from tokenizers import Tokenizer

from inferway_bench.loading.generated import text
from inferway_sim.prepare import prepare_smollm2


def tokenizer(name: str) -> Tokenizer:
    if name == "smollm2":
        return Tokenizer.from_file(str(prepare_smollm2() / "tokenizer.json"))
    return Tokenizer.from_str(tokenizer_json(name))


@pytest.mark.parametrize("name", ["smollm2", "gpt-2", "falcon", "starcoder", "bert-bge"])
def test_each_word_is_one_token(name: str) -> None:
    counted = len(tokenizer(name).encode(text(1000, "a"), add_special_tokens=False).ids)

    assert counted == 1000


@pytest.mark.parametrize("name", ["phi-3", "t5-small"])
def test_sentencepiece_vocabularies_are_within_a_hundredth(name: str) -> None:
    counted = len(tokenizer(name).encode(text(1000, "a"), add_special_tokens=False).ids)

    assert counted == pytest.approx(1000, rel=0.01)


def test_the_seed_decides_the_text() -> None:
    assert text(50, "a") == text(50, "a") != text(50, "b")
