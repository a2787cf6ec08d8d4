"""The models that are measured, and the conversations of seed 003 and of its source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from inferway.prompts.files.prepare import prepare_smollm2
from inferway_bench.chats import Message, default_data_dir
from inferway_bench.npm import npm_tokenizer
from inferway_bench.progress import OnStep

_GRANITE = "granite-3.3.jinja"  # of seed 003's model, in `templates/` of the benchmarks' data

# What TinyLlama and Zephyr are trained with: the end-of-sequence token stands between turns.
_ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

# reference: seed 003's demo; the last is the one that llm-d's own Go benchmark renders, from
# which the seed's figures are.
SEED_003: dict[str, list[Message]] = {
    "system + user": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello! Can you help me understand how KV-cache works?"},
    ],
    "user": [
        {"role": "user", "content": "What are the benefits of using template rendering?"},
    ],
    "system + 3 turns": [
        {"role": "system", "content": "You are an expert in machine learning."},
        {"role": "user", "content": "Explain the concept of attention mechanisms."},
        {"role": "assistant", "content": "Attention lets each token weigh all tokens before it."},
        {"role": "user", "content": "Can you give me a practical example?"},
    ],
    "2 short turns": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there!"},
    ],
}


class BenchModel(NamedTuple):
    """A directory that both systems can load."""

    label: str
    directory: Path


class BenchModels(NamedTuple):
    """The chats are measured with `plain` and with `fallback`, whose tokenizer fastokens refuses;
    `others` have large vocabularies and long templates."""

    plain: BenchModel
    granite: BenchModel
    fallback: BenchModel | None = None
    others: tuple[BenchModel, ...] = ()


def gather_models(work: Path, on_step: OnStep, *, npm: bool) -> BenchModels:
    """Return the models, those of npm too if `npm`. Raises BenchError or ConfigError when one
    cannot be had."""
    smollm2 = prepare_smollm2()
    template = (default_data_dir() / "templates" / _GRANITE).read_text()
    granite = _with_template(work / "granite", smollm2, template)
    models = BenchModels(BenchModel("SmolLM2", smollm2), BenchModel("Granite 3.3", granite))
    if not npm:
        return models
    # Its LlamaTokenizer is built anew by transformers, and by us.
    llama = _with_template(work / "llama", npm_tokenizer("llama2", on_step), _ZEPHYR)
    return models._replace(
        fallback=BenchModel("Llama tokenizer, Zephyr's template", llama),
        others=(
            BenchModel("Qwen3", npm_tokenizer("qwen3", on_step)),
            BenchModel("Gemma 3", npm_tokenizer("gemma3", on_step)),
        ),
    )


def _with_template(directory: Path, tokenizer: Path, template: str) -> Path:
    """A model in `directory`: the tokenizer's files, and another template."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, directory / name)
    (directory / "chat_template.jinja").write_text(template)
    return directory
