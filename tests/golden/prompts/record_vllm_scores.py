"""Writes vllm_scores.jsonl.gz: `/path/to/vllm-venv/bin/python record_vllm_scores.py`.

The prompts that the installed vLLM makes of texts that are compared (`/score`, `/rerank`), for a
tokenizer that puts special tokens around a text and another number of them around a pair, and for
one that puts none: as an embedding model, and as a classifier with a template, with pairs, and with
`use_sep_token: false`. No model is loaded.
"""
# mypy: ignore-errors

import gzip
import itertools
import json
import lzma
import random
import sys
import tempfile
from pathlib import Path

from pydantic import TypeAdapter
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.pooling.scoring.io_processor import (
    BiEncoderIOProcessor,
    CrossEncoderIOProcessor,
)
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.pooling.typing import PoolingServeContext
from vllm.renderers.chat_utils import ChatTemplateConfig
from vllm.renderers.registry import renderer_from_config

HERE = Path(__file__).parent
GOLDEN = HERE / "vllm_scores.jsonl.gz"
TOKENIZERS = HERE.parents[1] / "data" / "tokenizers"

MAX_MODEL_LEN = 64
_SPECIALS = {
    "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
    "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
}
_BOS, _EOS = ({"SpecialToken": {"id": name, "type_id": 0}} for name in _SPECIALS)
_A, _B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
CHANGES = {
    "phi-3": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_BOS, _A, _EOS],
            "pair": [_BOS, _A, _EOS, _EOS, _B, _EOS],
            "special_tokens": _SPECIALS,
        }
    },
    "starcoder": {},
}
TEMPLATE = (
    "{{ bos_token }}Instruct: {{ instruction | default('Judge.') }}\n"
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% if shouts %}{{ shouts | upper }}{% endif %}{% if add_generation_prompt %}?{% endif %}yes"
)
CONFIG = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": MAX_MODEL_LEN,
    "vocab_size": 50176,
    "num_labels": 1,
    "dtype": "float32",
}
# By the join: what config.json has, what converts the model, and the engine's chat template.
JOINS = {
    "apart": ({"architectures": ["Qwen3Model"]}, BiEncoderIOProcessor, None),
    "template": ({}, CrossEncoderIOProcessor, TEMPLATE),
    "pair": ({}, CrossEncoderIOProcessor, None),
    "joined": ({"use_sep_token": False}, CrossEncoderIOProcessor, None),
}
WORDS = (
    *(
        "key",
        "board",
        " stone",
        "12",
        "34.5",
        "\n",
        "  ",
        "é",
        "👩‍👩‍👧",
        "漢字",
        "<s>",
        "</s>",
        "'s",
    ),
    *("Where", " is", " it", "?", "'s", "un", "known", " THE", "\t", "a" * 9, " ", "ﬁ", "e\u0301"),
)


def bodies():
    yield from ({"text_1": "Where is it?", "text_2": text} for text in ("here", "", ["a", "", "b"]))
    yield {"query": "Where", "documents": "is it?"}
    yield {"query": "", "documents": ["", "a"]}
    yield {"text_1": ["a", "b"], "text_2": ["c", "d"]}
    yield {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}
    yield {"text_1": ["a", "b"], "text_2": "c"}
    yield {"text_1": [], "text_2": ["c"]}
    yield {"text_1": "a", "text_2": []}
    yield {"text_1": "a", "text_2": 5}
    yield {"query": ["a"], "documents": ["b"]}
    yield {"query": "a", "documents": [{"content": [{"type": "text", "text": "b"}]}]}
    yield {"query": "a", "documents": [{"text": "b"}]}
    yield {"text_1": "a", "queries": "b", "documents": ["c"]}
    yield {"text_1": "a", "text_2": "b", "queries": "c", "documents": "d"}
    yield {"queries": "a", "documents": "b", "items": "c"}
    given = {"queries": "Is a key", "items": ["board here?", " it"]}
    for more in (
        *({"instruction": "Find."}, {"instruction": ""}, {"instruction": 5}),
        {"instruction": "Find.", "chat_template_kwargs": {"instruction": "No.", "shouts": "x"}},
        {"chat_template_kwargs": {"instruction": None}},
        {"chat_template_kwargs": {"bos_token": "<x>", "unread": 1}},
        {"chat_template_kwargs": {"add_generation_prompt": True}},
        {"chat_template_kwargs": {"tools": []}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": "no"},
        *({"padding": "max_length"}, {"padding": "do_not_pad"}, {"padding": "odd"}),
        *({"max_tokens_per_doc": most} for most in (-1, 1, 64, None, "2")),
        *({"max_tokens_per_query": most} for most in (1, 2, 65)),
        {"max_tokens_per_query": 1, "max_tokens_per_doc": 1},
        {"truncate_prompt_tokens": 65},
        {"truncate_prompt_tokens": -2},
    ):
        yield {**given, **more}
    yield from drawn()


def drawn():
    random.seed(48)
    sides = itertools.cycle((("query", "documents"), ("text_1", "text_2"), ("data_1", "data_2")))
    for first, second in itertools.islice(sides, 120):
        body = {first: text(), second: [text() for _ in range(random.randint(1, 4))]}
        if random.random() < 0.4:
            body["truncate_prompt_tokens"] = random.choice((-1, 0, 5, 20, 60))
            body["truncation_side"] = random.choice((None, "left", "right"))
        # 0.33 cuts pairs otherwise than 0.32 where both are given
        if "truncate_prompt_tokens" not in body and random.random() < 0.4:
            body["max_tokens_per_query"] = random.choice((0, 2, 7))
            body["max_tokens_per_doc"] = random.choice((0, 1, 5))
        if random.random() < 0.3:
            body["instruction"] = text()
        yield body


def text():
    return "".join(random.choices(WORDS, k=random.choice((1, 3, 8, 20))))


def main(golden=GOLDEN):
    asked = list(bodies())
    rows = [{"max_model_len": MAX_MODEL_LEN, "template": TEMPLATE, "changes": CHANGES}]
    rows += [{"body": body} for body in asked]
    with tempfile.TemporaryDirectory() as directory:
        for name, join in itertools.product(CHANGES, JOINS):
            made = processor(Path(directory) / f"{name}-{join}", name, join)
            rows.append({"tokenizer": name, "join": join, "ids": [ids_of(made, b) for b in asked]})
    with golden.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)


def processor(directory, name, join):
    members, kind, template = JOINS[join]
    directory.mkdir()
    whole = json.loads(lzma.decompress((TOKENIZERS / f"{name}.tokenizer.json.xz").read_bytes()))
    (directory / "tokenizer.json").write_text(json.dumps({**whole, **CHANGES[name]}))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    settings = settings if name == "phi-3" else {**settings, "bos_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({**CONFIG, **members}))
    model = ModelConfig(str(directory), runner="pooling", max_model_len=MAX_MODEL_LEN)
    config = VllmConfig(model_config=model)
    return kind(config, renderer_from_config(config), ChatTemplateConfig(chat_template=template))


def ids_of(made, body):
    """The ids of each prompt; null where the request is refused."""
    kind = RerankRequest if "query" in body else ScoreRequest
    try:
        request = TypeAdapter(kind).validate_python({"model": "m", **body})
        names = ("cache_salt", "chat_template_kwargs")
        extras = {n: v for n in names if (v := getattr(request, n)) is not None}
        context = PoolingServeContext(
            request=request,
            raw_request=None,
            model_name="m",
            pooling_params=made.create_pooling_params(request),
            request_id="r",
            lora_request=None,
            priorities=0,
            prompt_extras=extras,
        )
        rendered = [made.render(each) for each in made.get_request_factory_online(context)]
    except Exception as e:
        print(made.name, body, repr(e)[:200].replace("\n", " "), file=sys.stderr)
        return None
    return [list(each["prompts"]["prompt_token_ids"]) for each in rendered]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
