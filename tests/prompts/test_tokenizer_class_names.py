"""Names and rules are those of the installed transformers, which is the engines' version."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from transformers import PreTrainedTokenizerBase
from transformers.models.auto import tokenization_auto as auto
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from inferway.errors import RenderError
from inferway.prompts.tokenizer.tokenizer_classes import (
    AS_IT_IS,
    FORCED_CLASSES,
    NOT_REPRODUCED,
    TOKENIZER_CLASSES,
    TYPES_AS_THEY_ARE,
    TYPES_OF_CLASS,
    tokenizer_class,
)

# Where mistral-common is not installed, its models are loaded as they are; vLLM asks for that too.
GENERIC = {"TokenizersBackend", "MistralCommonBackend"}


def classes_by_type() -> dict[str, str]:
    found = {}
    for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items():
        if name is not None:  # of packages that are not installed
            found[model_type] = name.removesuffix("Fast")
    return found


def test_types_that_are_loaded_as_they_are_are_transformers_own() -> None:
    theirs = {kind for kind, name in classes_by_type().items() if name in GENERIC}

    assert theirs == TYPES_AS_THEY_ARE


def test_types_of_rebuilt_classes_are_transformers_own() -> None:
    for name, types in TYPES_OF_CLASS.items():
        theirs = {kind for kind, other in classes_by_type().items() if other == name}

        assert set(types.split()) == theirs


def test_forced_classes_are_transformers_own() -> None:
    wrong = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    theirs = {kind: name for kind, name in classes_by_type().items() if kind in wrong}

    assert {kind: name for kind, name in theirs.items() if name not in GENERIC} == FORCED_CLASSES


def test_every_class_whose_types_are_known_can_be_rebuilt() -> None:
    assert TYPES_OF_CLASS.keys() == TOKENIZER_CLASSES.keys()


def tokenizer_classes() -> Iterator[type[PreTrainedTokenizerBase]]:
    """All that transformers has, but for those whose packages are not installed."""
    models = Path(transformers.__file__).parent / "models"
    for path in sorted(models.glob("*/tokenization_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        except (ImportError, NameError):
            continue
        for _, found in inspect.getmembers(module, inspect.isclass):
            theirs = found.__module__ == module.__name__ and not found.__name__.startswith("_")
            if theirs and issubclass(found, PreTrainedTokenizerBase):
                yield found


def test_each_class_of_transformers_is_rebuilt_refused_or_takes_the_file_as_it_is() -> None:
    takes_it: dict[str, bool] = {}
    for found in tokenizer_classes():
        name = found.__name__.removesuffix("Fast")
        as_it_is = issubclass(found, TokenizersBackend) and "__init__" not in vars(found)
        takes_it[name] = takes_it.get(name, True) and as_it_is
    rebuilt = {name for name in takes_it if name in TYPES_OF_CLASS}
    refused = {
        name
        for name in takes_it
        if name in NOT_REPRODUCED or name.removesuffix("Tokenizer") in NOT_REPRODUCED
    }

    assert rebuilt == set(TYPES_OF_CLASS)
    assert not rebuilt & refused
    assert {name for name, as_it_is in takes_it.items() if not as_it_is} == rebuilt | refused


@pytest.mark.parametrize(
    ("model_type", "named", "expected"),
    [
        ("llama", "LlamaTokenizerFast", "LlamaTokenizer"),
        ("deepseek_v3", "LlamaTokenizerFast", AS_IT_IS),
        ("qwen2", "LlamaTokenizerFast", "Qwen2Tokenizer"),
        ("gemma3", None, "GemmaTokenizer"),
        (None, "PreTrainedTokenizerFast", AS_IT_IS),
        ("llama", "NobodysTokenizer", AS_IT_IS),
    ],
)
def test_the_class_follows_from_type_and_name(
    model_type: str | None, named: str | None, expected: str
) -> None:
    assert tokenizer_class({"tokenizer_class": named}, {"model_type": model_type}) == expected


def test_a_model_with_code_of_its_own_is_taken_by_the_name_it_gives() -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": ["x.Y", None]}}

    assert tokenizer_class(config, {"model_type": "minicpm3"}) == "LlamaTokenizer"


def test_a_class_that_is_not_reproduced_is_named() -> None:
    with pytest.raises(RenderError, match="tokenizer class 'XGLMTokenizer' is not reproduced"):
        tokenizer_class({"tokenizer_class": "XGLMTokenizer"}, {})
