"""Templates that trusted requests choose, and arguments with the names of the functions' own: each
as vLLM has it (tests/golden/prompts/README.md)."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferway.config import ModelSettings
from inferway.errors import InferwayError, RenderError
from inferway.openai_api.requests import parse_chat
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.chat.helper_templates import RequestTemplates

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts" / "vllm_names.jsonl.gz"

Row = dict[str, Any]


@pytest.fixture
def golden(read_golden: Callable[[Path], list[Row]]) -> list[Row]:
    return read_golden(GOLDEN)


@pytest.fixture
async def models(
    golden: list[Row], renderer: Renderer, smollm2: Path, tmp_path: Path
) -> AsyncIterator[dict[str, list[ModelPrompts]]]:
    """By name: its prompts under each of the sets of flags."""
    templates = RequestTemplates()
    await templates.start()
    flags = msgspec.convert(golden[0]["flags"], list[ModelSettings])
    made = {}
    for name, chosen in golden[0]["models"].items():
        key = with_templates(renderer, smollm2, tmp_path / name, chosen)
        made[name] = [
            ModelPrompts(renderer, key, flags=given, request_templates=templates) for given in flags
        ]
    yield made
    templates.close()


def with_templates(
    renderer: Renderer, model: Path, copy: Path, templates: str | dict[str, str]
) -> str:
    """The key of a model with the tokenizer of `model`."""
    copy.mkdir()
    for file in model.glob("*.json"):
        shutil.copy(file, copy)
    named = isinstance(templates, dict) and [
        {"name": name, "template": source} for name, source in templates.items()
    ]
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config["chat_template"] = named or templates
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    asked = GetOrCreateTokenizerKeyRequest(str(copy), is_local=True)
    return renderer.get_or_create_tokenizer_key(asked)


async def compared(prompts: ModelPrompts, body: Row, expected: Row) -> str:
    """ "same", or what else it is."""
    try:
        made = await prompts.render_chat(parse_chat(json.dumps(body).encode()))
    except RenderError:
        # `apply_chat_template` makes the ids then, as it is told: the request goes by load
        return "same" if "fails" in expected else "by load"
    except InferwayError:
        # a prompt without tokens is refused as soon as it is made
        fails = "fails" in expected or not expected.get("text", expected.get("ids"))
        return "same" if fails else "refused"
    if "ids" in expected:
        return "same" if made.input_ids.tolist() == expected["ids"] else "other ids"
    return "same" if made.text == expected.get("text") else "another text"


async def outcomes(cases: list[Row], models: dict[str, list[ModelPrompts]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for case in cases:
        for model, expected in case["expected"].items():
            for prompts, wanted in zip(models[model], expected, strict=True):
                found[await compared(prompts, case["body"], wanted)] += 1
    return found


@pytest.mark.slow
async def test_templates_and_arguments_have_vllms_meaning(
    golden: list[Row], models: dict[str, list[ModelPrompts]]
) -> None:
    found = await outcomes(golden[1:], models)

    assert found == {"same": 25_872, "by load": 408}


# The quick ones.

MESSAGE = {"role": "user", "content": "Hi"}
PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
LISTED = {"default": "{{ messages[0].content }}", "rag": PARTS}


@pytest.fixture(scope="module")
def listed_key(renderer: Renderer, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return with_templates(renderer, smollm2, tmp_path_factory.mktemp("a") / "listed", LISTED)


@pytest.fixture
async def trusted() -> AsyncIterator[RequestTemplates]:
    made = RequestTemplates()
    await made.start()
    yield made
    made.close()


async def test_a_single_template_has_no_name(
    renderer: Renderer, smollm2_key: str, trusted: RequestTemplates
) -> None:
    prompts = ModelPrompts(renderer, smollm2_key, request_templates=trusted)

    assert await text(prompts, chat_template="default") == "default"
    assert await text(prompts, chat_template_kwargs={"chat_template": "default"}) == "default"


@pytest.mark.slow
async def test_one_of_several_is_chosen_by_its_name(
    renderer: Renderer, listed_key: str, trusted: RequestTemplates
) -> None:
    """As an argument it gets the content that the model's own wants: here it is text."""
    prompts = ModelPrompts(renderer, listed_key, request_templates=trusted)

    assert await text(prompts, chat_template="rag") == "Hi"
    assert await text(prompts, chat_template="default") == "Hi"
    assert await text(prompts, chat_template="none of them") == "none of them"
    with pytest.raises(InferwayError, match="no tokens"):
        await text(prompts, chat_template_kwargs={"chat_template": "rag"})


async def test_an_engines_own_argument_is_a_template_until_a_request_brings_one(
    renderer: Renderer, smollm2_key: str, trusted: RequestTemplates
) -> None:
    flags = ModelSettings(chat_template_kwargs={"chat_template": "D{{ messages[0].content }}"})
    untrusting = ModelPrompts(renderer, smollm2_key, flags=flags)
    trusting = ModelPrompts(renderer, smollm2_key, flags=flags, request_templates=trusted)

    assert await text(untrusting) == "DHi"
    assert await text(trusting, chat_template_kwargs={"chat_template": "auto"}) == "DHi"
    assert await text(trusting, chat_template_kwargs={"chat_template": "K"}) == "K"


@pytest.mark.parametrize("argument", [{"tools": "x"}, {"tools": 1}, {"documents": ["a"]}])
async def test_lists_of_something_else_than_objects_are_refused(
    renderer: Renderer, smollm2_key: str, argument: Row
) -> None:
    with pytest.raises(InferwayError, match="must be a list of objects"):
        await text(ModelPrompts(renderer, smollm2_key), chat_template_kwargs=argument)


async def text(prompts: ModelPrompts, **fields: Any) -> str:
    body = {"model": "m", "messages": [MESSAGE], **fields}
    return (await prompts.render_chat(parse_chat(json.dumps(body).encode()))).text
