"""A tokenizer that makes much of little is refused."""

from __future__ import annotations

import base64

import pytest
from tests.stored import tokenizer_json
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from inferway.errors import RenderError
from inferway.prompts.tokenizer.tokenizer_bounds import check_expansion

REAL = ("bert-bge", "falcon", "gpt-2", "phi-3", "starcoder", "t5-small")


def tokenizer(
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
) -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    return made


def mapped_to(text: bytes) -> normalizers.Normalizer:
    """A map as sentencepiece writes it, of one character to `text`."""
    trie = bytes(4)
    blob = len(trie).to_bytes(4, "little") + trie + text + b"\0"
    made = normalizers.Precompiled.__new__(normalizers.Precompiled, blob)
    assert isinstance(made, normalizers.Normalizer)
    return made


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace("a", "b" * 10_000),
        normalizers.Replace(Regex("a*"), "b" * 100),
        normalizers.Prepend("b" * 100),
        normalizers.Sequence([normalizers.Replace("a", "aaa")] * 9),
        normalizers.Sequence(
            [
                normalizers.Sequence([normalizers.Replace("a", "aaa")] * 2),
                normalizers.Prepend("b" * 9),
            ]
        ),
        normalizers.Sequence([normalizers.ByteLevel()] * 9),
        normalizers.Sequence([normalizers.NFKC()] * 99),
        mapped_to(b"b" * 10_000),
    ],
)
def test_normalizers_that_make_much_of_little_are_refused(
    normalizer: normalizers.Normalizer,
) -> None:
    with pytest.raises(RenderError, match="as long") as raised:
        check_expansion(tokenizer(normalizer), "tokenizer.json")

    assert raised.value.reason == "bad-tokenizer"


def test_pre_tokenizers_count_too() -> None:
    often = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(use_regex=False)] * 9)

    with pytest.raises(RenderError, match="as long"):
        check_expansion(tokenizer(None, often), "tokenizer.json")


def test_a_post_processor_that_puts_many_tokens_around_a_text_is_refused() -> None:
    made = tokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="a " * 65 + "$A", special_tokens=[("a", 0)]
    )

    with pytest.raises(RenderError, match="puts 65 tokens around every text") as raised:
        check_expansion(made, "tokenizer.json")

    assert raised.value.reason == "bad-tokenizer"


@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers_are_taken(name: str) -> None:
    check_expansion(Tokenizer.from_str(tokenizer_json(name)), name)


def test_what_real_ones_do_is_taken() -> None:
    usual = normalizers.Sequence(
        [
            mapped_to(base64.b64decode("4paB")),
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.NFKC(),
            normalizers.Lowercase(),
        ]
    )

    check_expansion(tokenizer(usual, pre_tokenizers.ByteLevel()), "tokenizer.json")
