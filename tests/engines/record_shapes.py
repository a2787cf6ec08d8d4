"""Records what vLLM makes of drawn_shapes.py with its own structured output, each for itself as if
it were the first request, into structured/tests/vllm_shapes.jsonl.xz: `{"kind", "value",
"backend"}`, the backend that serves it, or null. Its request class reads the shape, its parameters
check it and choose the backend, and that compiles it. Run by vLLM's own Python:

    .venv-vllm/bin/python -m tests.engines.record_shapes [FILE]
"""

from __future__ import annotations

import json
import lzma
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from tests.engines.drawn_shapes import Drawn, drawn_shapes

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "structured" / "tests" / "vllm_shapes.jsonl.xz"
TOKENIZER = ROOT / "src" / "inferway_sim" / "smollm2"


# Outlines may compile for minutes: what its validation takes counts as served.
_BACKENDS = {"xgrammar": "XgrammarBackend", "guidance": "GuidanceBackend"}


class Stock:
    """vLLM's structured output, as an engine of SmolLM2 configures it (`auto`)."""

    def __init__(self) -> None:
        self.refusals: dict[str, str] = {}  # by the kind of error, the last one
        chat = import_module("vllm.entrypoints.openai.chat_completion.protocol")
        self._request = chat.ChatCompletionRequest
        self._key = import_module("vllm.v1.structured_output.request").get_structured_output_key
        self._tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(
            str(TOKENIZER)
        )
        self._model = SimpleNamespace(is_diffusion=False, hf_config=SimpleNamespace(model_type="x"))
        self._config = import_module("vllm.config").StructuredOutputsConfig(backend="auto")
        config = SimpleNamespace(
            model_config=self._model,
            structured_outputs_config=self._config,
            speculative_config=None,
        )
        self._backends = {}
        for name, class_name in _BACKENDS.items():
            made = getattr(import_module(f"vllm.v1.structured_output.backend_{name}"), class_name)
            self._backends[name] = made(config, self._tokenizer, len(self._tokenizer))

    def backend(self, drawn: Drawn) -> str | None:
        """Which serves it."""
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "m", "messages": messages, **json.loads(json.dumps(drawn.fields))}
        try:
            params = self._request.model_validate(body).to_sampling_params(16, {})
            params._validate_structured_outputs(self._model, self._config, self._tokenizer)
            outputs = params.structured_outputs
            name = str(outputs._backend)
            if name in self._backends:
                self._backends[name].compile_grammar(*self._key(outputs))
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
            self.refusals[type(e).__name__] = said[:200]
            return None
        return name


def main() -> None:
    stock, lines = Stock(), []
    for drawn in drawn_shapes():
        row = {**drawn._asdict(), "backend": stock.backend(drawn)}
        lines.append(json.dumps(row) + "\n")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else SHAPES
    file.write_bytes(lzma.compress("".join(lines).encode(), preset=9))
    num_served = sum('"backend": null' not in line for line in lines)
    for refusal in stock.refusals.values():
        print(refusal)
    print(f"{file}: {len(lines)} shapes, {num_served} served")


if __name__ == "__main__":
    main()
