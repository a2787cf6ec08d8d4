"""Which regexes are known to take time in proportion to a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stored import TOKENIZERS
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.tokenizer.engine_tokenizer import build_engine_tokenizer
from inferway.prompts.tokenizer.tokenizer_bounds import is_bounded, unbounded_regex
from inferway_sim.prepare import PACKAGED_SMOLLM2

MakeModel = Callable[..., Path]

# As they stand in the models' files, but for those that stand in known_regexes.txt as they are.
QWEN_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REAL = {
    "Qwen 3": QWEN_3,
    "Llama 3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "DeepSeek V3": (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
        "\r\n"
        r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
        "\r\n"
        r"]*|\s*["
        "\r\n"
        r"]+|\s+(?!\S)|\s+"
    ),
    "Seed Coder": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^"
        "\r\n"
        r"\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}"
        "\r\n"
        r"]+|\s*["
        "\r\n"
        r"]+|\s+(?!\S)|\s+"
    ),
    "Poro": " ?[^(\\s|.,!?…。，、।۔،)]+",
    "CLIP": (
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]"
        r"|[^\s\p{L}\p{N}]+"
    ),
    "Falcon": "[0-9][0-9][0-9]",
    "DeepSeek V3, digits": r"\p{N}{1,3}",
    "DeepSeek V3, Han": "[一-龥\u3040-ゟ゠-ヿ]+",
    "DeepSeek Coder": r"\s?\p{L}+",
    "Gemma 4, written out": r"[^\n]+|[\n]+",
    "DeBERTa": r"\s{2,}|[\n\r\t]",
    "T5": " {2,}",
}


@pytest.mark.parametrize("model", REAL)
def test_a_real_models_regex_is_known(model: str) -> None:
    assert is_bounded(REAL[model])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_regexes_of_stored_tokenizers_are_known(name: str, make_model: MakeModel) -> None:
    files = read_model_files(make_model(name))

    assert unbounded_regex(build_engine_tokenizer(files.tokenizer).tokenizer) is None


def test_so_are_those_of_the_packaged_model() -> None:
    files = read_model_files(PACKAGED_SMOLLM2)

    assert unbounded_regex(build_engine_tokenizer(files.tokenizer).tokenizer) is None


@pytest.mark.parametrize("regex", ["[0-9]", r"\p{Lu}{2,3}", "a|[bc]*", r"[\p{L}\p{M}'’]+", "."])
def test_so_is_a_simple_one(regex: str) -> None:
    assert is_bounded(regex)


@pytest.mark.parametrize(
    "regex",
    [
        "(a+)+b|.",
        r"(a+)\1+b|.",
        "a.*a.*a.*b|.",
        " +x",  # for a long run of spaces it tries every place, to its end
        r"\s+$",  # DeepSeek Coder V2: the same
        r"\d{1,3}(?=(?:\d{3})*\b)",  # Tiny Aya: the same for digits
        r"(?=(\d{3})+(?!\d))",  # SuperBPE
        "a{999}",
        "a?a?a?a?aaaa",
        "[a[b]]+",
        QWEN_3 + "|(a+)+b",
        QWEN_3.removesuffix(r"|\s+(?!\S)|\s+"),  # nothing takes blanks without a line end
        "a" * 501,
    ],
)
def test_what_is_neither_is_not(regex: str) -> None:
    assert not is_bounded(regex)


def test_a_regex_is_found_wherever_it_stands() -> None:
    hidden = Regex("(a+)+b")
    split = pre_tokenizers.Split(hidden, "isolated")
    deep = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Sequence([split])])
    replace = normalizers.Replace(hidden, "")
    plain, by_text, cut, normalized, decoded = (Tokenizer(models.BPE()) for _ in range(5))
    by_text.normalizer = normalizers.Replace("(a+)+b", "")
    cut.pre_tokenizer = deep
    normalized.normalizer = normalizers.Sequence([normalizers.NFC(), replace])
    decoded.decoder = decoders.Replace(hidden, "")

    found = [unbounded_regex(each) for each in (plain, by_text, cut, normalized, decoded)]

    assert found == [None, None, "(a+)+b", "(a+)+b", "(a+)+b"]
