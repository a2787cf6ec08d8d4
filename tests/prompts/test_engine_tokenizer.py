"""The tokenizer built from a model's files is, part by part, the one that transformers builds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.prompts.transformers_oracle import load_theirs, parts
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from inferway.errors import RenderError
from inferway.prompts.tokenizer.engine_tokenizer import TokenizerFiles, build_engine_tokenizer

JsonObject = dict[str, Any]
MakeModel = Callable[..., Path]

VOCABULARY = ["<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "▁", "Ġ", "a", "b", "ab", "▁ab"]
MERGES = [("a", "b"), ("▁", "ab")]


def bpe() -> tokenizers.Tokenizer:
    """One whose every part differs from what the classes set."""
    vocabulary = {piece: id for id, piece in enumerate(VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken("<s>", normalized=True, special=True), AddedToken("<tool>")])
    return tokenizer


def bos_first(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def write(directory: Path, tokenizer: tokenizers.Tokenizer, **files: Any) -> Path:
    """`files`: contents of JSON files by their names, without `.json`."""
    tokenizer.save(str(directory / "tokenizer.json"))
    for name in ("tokenizer_config", "special_tokens_map", "added_tokens", "config"):
        path = directory / f"{name}.json"
        path.unlink(missing_ok=True)
        if files.get(name) is not None:
            path.write_text(json.dumps(files[name]))
    return directory


def read(directory: Path) -> TokenizerFiles:
    def object_in(name: str) -> JsonObject:
        path = directory / f"{name}.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    return TokenizerFiles(
        (directory / "tokenizer.json").read_text(),
        object_in("tokenizer_config"),
        object_in("special_tokens_map"),
        object_in("added_tokens"),
        object_in("config"),
    )


def assert_as_transformers(directory: Path) -> None:
    try:
        theirs = load_theirs(directory)
    except TypeError:  # settings that no engine starts with
        assume(False)
    ours = build_engine_tokenizer(read(directory))

    assert parts(ours.tokenizer) == parts(theirs.backend_tokenizer)
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.tokenizer.encode_special_tokens == theirs.backend_tokenizer.encode_special_tokens


BPE_CLASSES = [
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizerFast",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "PreTrainedTokenizerFast",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
    "BloomTokenizerFast",
    "ATokenizerOfItsOwn",
]


@pytest.mark.parametrize("name", BPE_CLASSES)
def test_a_class_makes_of_the_file_what_transformers_makes_of_it(name: str, tmp_path: Path) -> None:
    config = {"tokenizer_class": name}
    assert_as_transformers(write(tmp_path, bos_first(bpe()), tokenizer_config=config))


def test_t5_keeps_the_charsmap_and_sets_its_own_end(make_model: MakeModel) -> None:
    assert_as_transformers(make_model("t5-small", tokenizer_class="T5Tokenizer"))


@pytest.mark.parametrize("name", ["T5Tokenizer", "T5TokenizerFast"])
def test_t5_needs_a_unigram_vocabulary(name: str, tmp_path: Path) -> None:
    write(tmp_path, bpe(), tokenizer_config={"tokenizer_class": name})

    with pytest.raises(RenderError, match="needs a Unigram vocabulary"):
        build_engine_tokenizer(read(tmp_path))


@pytest.mark.parametrize("name", ["WhisperTokenizer", "BertTokenizerFast", "ByT5Tokenizer"])
def test_a_class_that_is_not_reproduced_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, bpe(), tokenizer_config={"tokenizer_class": name})

    with pytest.raises(RenderError, match="is not reproduced here") as e:
        build_engine_tokenizer(read(tmp_path))

    assert e.value.reason == "no-tokenizer"


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llama", "GPT2Tokenizer"),  # SmolLM2: digits are not split, although its file says so
        ("llama", "LlamaTokenizerFast"),
        ("mistral", "LlamaTokenizer"),
        ("deepseek_v3", "LlamaTokenizerFast"),
        ("granite", "GPT2Tokenizer"),
        ("qwen2", "LlamaTokenizerFast"),  # DeepSeek R1 distilled
        ("qwen3", "PreTrainedTokenizerFast"),
        ("qwen3", None),
        ("gemma3", None),
        ("llama", None),
        ("internlm2", "LlamaTokenizerFast"),
        (None, "LlamaTokenizer"),
        (None, None),
    ],
)
def test_the_models_type_and_class_decide_together(
    model_type: str | None, name: str | None, tmp_path: Path
) -> None:
    files = {
        "tokenizer_config": {"tokenizer_class": name} if name else None,
        "config": {"model_type": model_type} if model_type else None,
    }
    assert_as_transformers(write(tmp_path, bpe(), **files))


def test_a_class_named_in_the_models_own_config_counts(tmp_path: Path) -> None:
    config = {"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}
    assert_as_transformers(write(tmp_path, bpe(), config=config))


@pytest.mark.parametrize("version", ["4.57.1", "5.0.0", None])
@pytest.mark.parametrize("model_type", ["mistral", "qwen3"])
def test_mistrals_regex_is_fixed_where_transformers_fixes_it(
    model_type: str, version: str | None, tmp_path: Path
) -> None:
    vocabulary = {f"t{id}": id for id in range(100_001)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    config = {"model_type": model_type, "transformers_version": version}
    assert_as_transformers(
        write(tmp_path, tokenizer, tokenizer_config={"fix_mistral_regex": True}, config=config)
    )


CONTENTS = st.sampled_from(
    ["<s>", "</s>", "<unk>", "<|endoftext|>", "<tool>", "<new>", "ab", "<x>"]
)
FLAGS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["lstrip", "rstrip", "single_word", "normalized"], st.booleans())
)


@st.composite
def token_objects(draw: st.DrawFn) -> JsonObject:
    return {"content": draw(CONTENTS), **draw(FLAGS)}


@st.composite
def listed_tokens(draw: st.DrawFn) -> JsonObject:
    ids = draw(st.lists(st.sampled_from([0, 1, 2, 4, 9, 11, 12, 14]), max_size=4, unique=True))
    return {
        str(id): {**draw(token_objects()), "special": draw(st.booleans())}
        for id in sorted(ids, reverse=draw(st.booleans()))
    }


NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "image_token"]
IN_CONFIG = (
    CONTENTS | st.none() | token_objects().map(lambda token: {"__type": "AddedToken"} | token)
)


@st.composite
def tokenizer_configs(draw: st.DrawFn) -> JsonObject:
    flags = st.sampled_from([True, False, None])
    optional: dict[str, st.SearchStrategy[Any]] = {
        "add_prefix_space": flags,
        "legacy": flags,
        "split_special_tokens": st.booleans(),
        "add_bos_token": st.booleans(),
        "added_tokens_decoder": listed_tokens(),
        "extra_special_tokens": st.lists(CONTENTS, max_size=3)
        | st.dictionaries(st.sampled_from(["video_token", "image_token"]), CONTENTS, max_size=2),
        "additional_special_tokens": st.lists(CONTENTS, max_size=3),
        **dict.fromkeys(NAMES, IN_CONFIG),
    }
    name = draw(st.sampled_from(BPE_CLASSES))
    return {"tokenizer_class": name, **draw(st.fixed_dictionaries({}, optional=optional))}


IDS = {"<unk>": 0, "</s>": 2, "<|endoftext|>": 4, "ab": 9, "<tool>": 11, "<new>": 12, "<x>": 13}
ADDED_TOKENS = st.sets(st.sampled_from(sorted(IDS)), max_size=3).map(
    lambda contents: {content: IDS[content] for content in contents}
)
MAPS = st.dictionaries(st.sampled_from(NAMES), CONTENTS | token_objects(), max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    config=tokenizer_configs(),
    special_tokens_map=st.none() | MAPS,
    added_tokens=st.none() | ADDED_TOKENS,
    with_bos=st.booleans(),
)
@example(
    config={
        "tokenizer_class": "CodeLlamaTokenizer",
        "image_token": None,
        "extra_special_tokens": {"video_token": "<new>", "image_token": "<x>"},
    },
    special_tokens_map=None,
    added_tokens=None,
    with_bos=False,
)
def test_any_settings_make_what_transformers_makes_of_them(
    tmp_path_factory: pytest.TempPathFactory,
    config: JsonObject,
    special_tokens_map: JsonObject | None,
    added_tokens: JsonObject | None,
    with_bos: bool,
) -> None:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = bos_first(bpe()) if with_bos else bpe()
    assert_as_transformers(
        write(
            directory,
            tokenizer,
            tokenizer_config=config,
            special_tokens_map=special_tokens_map,
            added_tokens=added_tokens,
        )
    )
