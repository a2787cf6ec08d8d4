"""Ids are those of the engine's tokenizer, whichever encoder makes them."""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts.texts import drawn_texts
from tests.prompts.transformers_oracle import load_theirs
from tests.stored import conversations, token_vectors, tokenizer_json

from inferway.errors import InvalidRequestError, RenderError, panic_as_error
from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.tokenizer.tokenizer import CHECK_TEXTS, Tokenizer

MakeModel = Callable[..., Path]
SharedTokenizer = Callable[[str], tuple[Path, Tokenizer]]

BY_FASTOKENS = ["phi-3", "starcoder", "gpt-2"]
BY_TOKENIZERS = ["falcon", "bert-bge", "t5-small"]


def load(directory: Path) -> Tokenizer:
    return Tokenizer(read_model_files(directory).tokenizer)


@pytest.fixture(scope="module")
def shared_tokenizer(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Tokenizer]]:
    """One of the stored tokenizers without a config, and its directory; loaded once."""

    @cache
    def get(name: str) -> tuple[Path, Tokenizer]:
        directory = tmp_path_factory.mktemp(name)
        (directory / "tokenizer.json").write_text(tokenizer_json(name))
        return directory, load(directory)

    return get


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return load(smollm2)


@pytest.mark.parametrize("name", ["phi-3", "falcon", "starcoder", "gpt-2", "bert-bge"])
def test_ids_are_those_that_llama_cpp_recorded(
    name: str, shared_tokenizer: SharedTokenizer
) -> None:
    _, tokenizer = shared_tokenizer(name)
    vectors = [row for row in token_vectors() if row["model"] == name]
    misses = [
        row["text"]
        for row in vectors
        if tokenizer.encode(row["text"], add_special_tokens=False).tolist() != row["ids"]
    ]

    assert len(vectors) >= 31
    assert misses == []


@pytest.mark.parametrize("name", [*BY_FASTOKENS, *BY_TOKENIZERS])
def test_real_chats_get_the_ids_of_the_reference(
    name: str, shared_tokenizer: SharedTokenizer, chat_texts: list[str]
) -> None:
    _, tokenizer = shared_tokenizer(name)

    for text in chat_texts:
        ids = tokenizer.encode(text, add_special_tokens=True)
        expected, _ = tokenizer.encode_with_offsets(text, add_special_tokens=True)

        assert np.array_equal(ids, expected)


@pytest.fixture(scope="module")
def chat_texts() -> list[str]:
    """150 messages: English, Chinese, code, tool calls."""
    files = ["oasst1_en_threads", "kdconv_zh", "tau_bench_airline_gpt4o"]
    return [text for file in files for text in first_texts(conversations(file))]


def first_texts(rows: list[dict[str, Any]]) -> Iterator[str]:
    texts = [m["content"] for row in rows[:20] for m in row["messages"]]
    yield from [text for text in texts if isinstance(text, str)][:50]


@pytest.mark.parametrize("name", BY_FASTOKENS)
def test_fastokens_encodes_what_it_encodes_exactly(
    name: str, shared_tokenizer: SharedTokenizer
) -> None:
    _, tokenizer = shared_tokenizer(name)

    assert tokenizer.encoder == "fastokens"
    assert re.fullmatch(r"agrees with tokenizers on \d+ texts", tokenizer.why)


@pytest.mark.parametrize("name", BY_TOKENIZERS)
def test_tokenizers_encodes_what_fastokens_refuses(
    name: str, shared_tokenizer: SharedTokenizer
) -> None:
    _, tokenizer = shared_tokenizer(name)

    assert tokenizer.encoder == "tokenizers"
    assert tokenizer.why.startswith("fastokens refuses it: ")


@pytest.mark.parametrize("name", [*BY_FASTOKENS, *BY_TOKENIZERS])
def test_drawn_texts_get_the_ids_and_offsets_of_transformers(
    name: str, shared_tokenizer: SharedTokenizer
) -> None:
    directory, tokenizer = shared_tokenizer(name)
    theirs = load_theirs(directory)
    added = list(theirs.get_added_vocab())

    for text in [*CHECK_TEXTS, *drawn_texts(5, 150, added)]:
        ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=True)
        expected = theirs(text, return_offsets_mapping=True)

        assert ids.tolist() == expected["input_ids"]
        assert [tuple(offset) for offset in offsets.tolist()] == expected["offset_mapping"]
        assert tokenizer.encode(text, add_special_tokens=True).tolist() == expected["input_ids"]


# tokenizer_config.json's class, and a vocabulary that suits it.
REBUILT = [
    ("LlamaTokenizer", "phi-3", "tokenizers"),
    ("CodeLlamaTokenizer", "phi-3", "tokenizers"),
    ("GemmaTokenizer", "phi-3", "fastokens"),
    ("GPT2Tokenizer", "starcoder", "fastokens"),
    ("GPTNeoXTokenizer", "gpt-2", "fastokens"),
    ("Qwen2Tokenizer", "gpt-2", "fastokens"),
    ("CohereTokenizer", "gpt-2", "fastokens"),
    ("T5Tokenizer", "t5-small", "tokenizers"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tokenizer_class", "name", "encoder"), REBUILT)
def test_rebuilt_tokenizers_give_the_ids_of_transformers(
    tokenizer_class: str, name: str, encoder: str, make_model: MakeModel
) -> None:
    directory = make_model(name, tokenizer_class=tokenizer_class)
    tokenizer, theirs = load(directory), load_theirs(directory)

    assert tokenizer.encoder == encoder
    added = [token for token in theirs.get_added_vocab() if token != "<FILL_ME>"]
    for text in drawn_texts(6, 100, added):
        expected = theirs(text)["input_ids"]

        assert tokenizer.encode(text, add_special_tokens=True).tolist() == expected


def test_code_llamas_infilling_is_said_not_to_be_followed(make_model: MakeModel) -> None:
    tokenizer = load(make_model("phi-3", tokenizer_class="CodeLlamaTokenizer"))

    with pytest.raises(RenderError, match="rearranges a text with '<FILL_ME>'"):
        tokenizer.encode("def f():\n<FILL_ME>\n", add_special_tokens=True)


def test_special_tokens_may_be_ordinary_text(make_model: MakeModel) -> None:
    directory = make_model("gpt-2", split_special_tokens=True)
    tokenizer = load(directory)
    expected = load_theirs(directory)("a<|endoftext|>b")["input_ids"]

    assert tokenizer.encode("a<|endoftext|>b", add_special_tokens=False).tolist() == expected
    assert tokenizer.encoder == "tokenizers"


PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_end", "<|endoftext|>", " ", "  ", "\n", "\r\n", "\t", "'s"]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=12).map("".join)


@given(TEXTS)
def test_any_text_gets_the_ids_of_the_reference(smollm2_tokenizer: Tokenizer, text: str) -> None:
    try:
        expected, _ = smollm2_tokenizer.encode_with_offsets(text, add_special_tokens=False)
    except InvalidRequestError:
        with pytest.raises(InvalidRequestError):
            smollm2_tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = smollm2_tokenizer.encode(text, add_special_tokens=False)

        assert np.array_equal(ids, expected)


# Not among them: control characters, some of which SmolLM2's vocabulary lacks.
ASSIGNED = st.characters(exclude_categories=["Cs", "Cn", "Cc"])


@given(st.text(ASSIGNED, max_size=40))
def test_ids_decode_to_the_text(smollm2_tokenizer: Tokenizer, text: str) -> None:
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False)

    assert smollm2_tokenizer.decode(ids) == text


def test_a_byte_that_the_vocabulary_lacks_is_dropped_as_the_engine_does(
    smollm2_tokenizer: Tokenizer,
) -> None:
    ids = smollm2_tokenizer.encode("a\x16b", add_special_tokens=False)

    assert smollm2_tokenizer.decode(ids) == "ab"


def test_ids_are_unsigned_32_bit(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("Hello", add_special_tokens=False)

    assert ids.dtype == np.uint32


def test_decoding_may_leave_special_tokens_out(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("<|im_start|>user", add_special_tokens=False)

    assert smollm2_tokenizer.decode(ids, skip_special_tokens=True) == "user"


@pytest.mark.parametrize("name", ["smollm2", "falcon"])
def test_a_lone_surrogate_is_the_clients_fault(
    name: str, shared_tokenizer: SharedTokenizer, smollm2_tokenizer: Tokenizer
) -> None:
    tokenizer = smollm2_tokenizer if name == "smollm2" else shared_tokenizer(name)[1]

    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        tokenizer.encode("a\ud800b", add_special_tokens=False)


def test_special_tokens_come_from_the_post_processor(phi3_with_specials: Path) -> None:
    tokenizer = load(phi3_with_specials)
    plain = tokenizer.encode("hello", add_special_tokens=False)

    ids = tokenizer.encode("hello", add_special_tokens=True)

    assert ids.tolist() == [1, *plain.tolist(), 2]


def test_a_config_cannot_switch_special_tokens_on(make_model: MakeModel) -> None:
    tokenizer = load(make_model("phi-3", bos_token="<s>", add_bos_token=True))

    assert 1 not in tokenizer.encode("hello", add_special_tokens=True)


def test_a_config_may_add_tokens(make_model: MakeModel) -> None:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = {"50257": {"content": "<tool>", "special": False, **flags}}
    tokenizer = load(make_model("gpt-2", added_tokens_decoder=added))

    assert tokenizer.encode("<tool>", add_special_tokens=False).tolist() == [50257]


def test_truncation_keeps_the_last_tokens(smollm2_tokenizer: Tokenizer) -> None:
    full = smollm2_tokenizer.encode("one two three four", add_special_tokens=False)

    ids = smollm2_tokenizer.encode("one two three four", add_special_tokens=False, keep_last=2)

    assert ids.tolist() == full[-2:].tolist()


def test_truncation_does_not_drop_special_tokens(phi3_with_specials: Path) -> None:
    ids = load(phi3_with_specials).encode("one two three", add_special_tokens=True, keep_last=3)

    assert ids[[0, -1]].tolist() == [1, 2]
    assert len(ids) == 3


def test_a_broken_tokenizer_file_is_our_trouble(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(RenderError, match=r"/tokenizer\.json: it is no tokenizer") as e:
        load(tmp_path)

    assert e.value.reason == "bad-tokenizer"


BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}


def test_a_file_on_which_the_library_panics_is_our_trouble(make_model: MakeModel) -> None:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    directory = make_model("gpt-2", {"normalizer": charsmap})

    with pytest.raises(RenderError, match=r"gpt-2/tokenizer\.json: .*precompiled_charsmap") as e:
        load(directory)

    assert e.value.reason == "bad-tokenizer"


def test_a_text_on_which_the_library_panics_is_our_trouble_and_no_other(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Onig gives up after so many retries; `tokenizers` has no error for that."""
    pre_tokenizer = {**BACKTRACKS, "invert": False}
    tokenizer = load(make_model("gpt-2", {"pre_tokenizer": pre_tokenizer}))
    before = tokenizer.encode("a text", add_special_tokens=False)

    for _ in range(2):
        with pytest.raises(RenderError, match="has panicked on the text") as e:
            tokenizer.encode("a" * 40 + "b", add_special_tokens=False)
        assert e.value.reason == "bad-tokenizer"
    with pytest.raises(RenderError, match="has panicked on the text"):
        tokenizer.encode_with_offsets("a" * 40 + "b", add_special_tokens=False)

    assert tokenizer.encode("a text", add_special_tokens=False).tolist() == before.tolist()
    assert tokenizer.num_panics == 3
    assert len(caplog.records) == 1  # said once, and without the text
    assert "aaaa" not in caplog.text


class PanicException(BaseException):
    """As pyo3 has it, anew in every library."""


class PanickingEncoder:
    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
        raise PanicException(f"index out of bounds in {inputs}")


def test_an_encoder_that_panics_is_given_up_for_the_truth(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = load(make_model("gpt-2"))
    assert tokenizer._fast is not None
    text = "a text for two encoders"
    expected = tokenizer.encode(text, add_special_tokens=False)
    tokenizer._fast = PanickingEncoder()

    found = [tokenizer.encode(text, add_special_tokens=False) for _ in range(2)]

    assert [ids.tolist() for ids in found] == [expected.tolist()] * 2
    assert tokenizer.encoder == "tokenizers"
    assert (tokenizer.num_panics, len(caplog.records)) == (0, 1)
    assert text not in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError])
def test_what_is_no_panic_comes_out_as_it_is(error: type[BaseException]) -> None:
    with pytest.raises(error):
        panic_as_error(error())
