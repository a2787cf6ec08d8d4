from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structured.tests.compiling import SMOLLM2, smollm2

from inferway_structured.backends.vocabulary import Vocabulary
from inferway_structured.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SMOLLM2)


def test_a_tokenizer_in_memory_is_the_one_in_its_file(tokenizer: Any) -> None:
    vocabulary = Vocabulary.of(tokenizer, 49_152)

    assert (vocabulary.size, vocabulary.eos_token_ids) == (49_152, (2,))
    assert vocabulary.token_bytes == smollm2().token_bytes
    assert vocabulary.special_tokens == smollm2().special_tokens


def test_a_model_has_room_for_more_tokens_than_its_tokenizer(tokenizer: Any) -> None:
    vocabulary = Vocabulary.of(tokenizer, 49_300)

    assert vocabulary.num_words == 1541
    assert vocabulary.ll_tokenizer.vocab_size == 49_300
    assert vocabulary.token_bytes[49_200:] == [None] * 100


def test_padding_and_truncation_of_the_tokenizer_cut_nothing(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.enable_truncation(max_length=2)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    try:
        found = Vocabulary.of(tokenizer, 49_152).ll_tokenizer.tokenize_str("one two three four")
    finally:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()

    assert found == smollm2().ll_tokenizer.tokenize_str("one two three four")


def test_a_tokenizer_that_brings_its_own_is_taken_at_its_word() -> None:
    own = smollm2().ll_tokenizer
    vocabulary = Vocabulary.of(SimpleNamespace(eos_token_id=2, llg_tokenizer=own), 49_152)

    assert vocabulary.ll_tokenizer is own


def test_a_slow_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="SimpleNamespace"):
        Vocabulary.of(SimpleNamespace(eos_token_id=2), 10)
