"""What the gateway matches of texts that are compared, classified or pooled is what the engine
reuses of their prompts, as its counters tell: for an embedding model, and for classifiers that make
prompts of pairs of texts, with a chat template, and without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import client
from tests.engines.conftest import Say
from tests.engines.engine import MODEL, RealEngine
from tests.engines.pooling import Pooling, serving_pooling

ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "<|im_start|>system\n{{ instruction | default('Judge the document.') }}<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}yes"
)
CONFIG = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "model_type": "qwen3",
    "vocab_size": 49152,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,  # the CPU's kernel takes no smaller one
    "max_position_embeddings": 4096,
    "num_labels": 1,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}
QUERY = "Which of the keepers counted every boat that passed by in winter, and why did he? " * 9
DOCUMENTS = [f"{name} kept the tower, and wrote down all that passed. " * 12 for name in "AB"]

# Of each kind: what config.json has beside CONFIG, and the flags of engine and gateway.
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "apart": ({"architectures": ["Qwen3ForCausalLM"]}, ()),
    "pair": ({}, ()),
    "joined": ({"use_sep_token": False}, ()),
    "template": ({"architectures": ["Qwen3ForCausalLM"]}, ("--chat-template",)),
}
OVERRIDES = json.dumps({"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1})


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pooling(
    kind: str,
    vllm: Path,
    tmp_path_factory: pytest.TempPathFactory,
    new_log: Callable[[str], Path],
    say: Say,
) -> Iterator[Pooling]:
    members, wanted = KINDS[kind]
    directory = tmp_path_factory.mktemp(kind) / "model"
    shutil.copytree(ROOT / "src" / "inferway_sim" / "smollm2", directory)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **members}))
    template = directory.with_name("score.jinja")
    template.write_text(TEMPLATE)
    flags, ours = ["--runner", "pooling", "--load-format", "dummy"], []
    if wanted:
        flags += ["--chat-template", str(template), "--hf-overrides", OVERRIDES]
        ours = ["--chat-template", f"smollm2={template}"]
    engine = RealEngine(vllm, directory, new_log(f"engine-{kind}"), flags)
    with serving_pooling(engine, new_log, say, *ours) as served:
        yield served


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS[0]}),
        ("/v2/rerank", {"query": QUERY, "documents": DOCUMENTS, "instruction": "Count them."}),
        ("/score", {"text_1": QUERY, "text_2": DOCUMENTS, "cache_salt": "s"}),
        ("/v1/score", {"queries": DOCUMENTS, "items": DOCUMENTS[::-1]}),
        ("/score", {"text_1": QUERY, "text_2": DOCUMENTS, "max_tokens_per_doc": 70}),
        (
            "/score",
            {
                **{"text_1": QUERY, "text_2": DOCUMENTS},
                **{"truncate_prompt_tokens": 150, "truncation_side": "left"},
            },
        ),
    ],
)
def test_what_is_matched_of_compared_texts_is_what_the_engine_reuses(
    path: str, fields: dict[str, Any], pooling: Pooling
) -> None:
    pooling.wait_until_matched(path, fields)


@pytest.mark.parametrize("fields", [{"input": QUERY + "A."}, {"input": [QUERY, DOCUMENTS[0]]}])
def test_what_is_matched_of_pooled_and_classified_texts_is_what_the_engine_reuses(
    fields: dict[str, Any], pooling: Pooling, kind: str
) -> None:
    pooling.wait_until_matched("/pooling", fields)
    if kind != "apart":
        pooling.wait_until_matched("/classify", fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"query": QUERY, "documents": []},
        {"query": 5, "documents": ["a"]},
        {"query": "a", "documents": [{"content": []}]},
        {"query": "a", "documents": ["a"], "max_tokens_per_doc": -1},
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words(
    fields: dict[str, Any], pooling: Pooling
) -> None:
    body = {"model": MODEL, **fields}
    ours = client.post(f"{pooling.url}/rerank", body)
    theirs = client.post(f"{pooling.engine.url}/rerank", body)

    assert (ours.status, ours.json) == (theirs.status, theirs.json)
    assert 400 <= ours.status < 500
