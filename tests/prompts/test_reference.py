"""A tokenizer that is packed away comes back as it was, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from inferway.prompts.freed_memory import give_back_memory
from inferway.prompts.tokenizer.tokenizer import EVERY_BYTE, HfEncoder, encode_all


def tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_tokens([AddedToken("<s>", special=True)])
    return made


def packed(made: tokenizers.Tokenizer) -> HfEncoder:
    reference = HfEncoder(made)
    reference.pack(made.to_str())
    return reference


def test_it_encodes_as_before() -> None:
    reference = packed(tokenizer())

    assert reference.is_packed
    assert [ids.tolist() for ids in encode_all(reference.get(), ["a <s> b", "c"])] == [
        [0, 3, 1],
        [2],
    ]
    assert not reference.is_packed


def test_special_tokens_that_count_as_text_still_do() -> None:
    made = tokenizer()
    made.encode_special_tokens = True

    assert packed(made).get().encode_special_tokens


def test_many_threads_unpack_it_once() -> None:
    reference = packed(tokenizer())
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: id(reference.get()), range(64)))

    assert len(found) == 1


def test_every_byte_that_utf_8_knows_is_among_every_byte() -> None:
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}

    assert set(EVERY_BYTE.encode()) == set(range(0x100)) - never


def test_memory_can_be_given_back_at_any_time() -> None:
    before = bytearray(1 << 20)
    give_back_memory()

    assert len(before) == 1 << 20
