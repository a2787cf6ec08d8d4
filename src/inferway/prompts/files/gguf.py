"""A GGUF file -> its metadata and tensors. Only what a small Llama-like model needs.

Layout (ggml's docs/gguf.md, version 3), little-endian throughout: magic, version, number of
tensors, number of metadata pairs; the pairs; one entry per tensor; padding to `alignment`; data.
Shapes are stored fastest axis first and are turned round here, so that they read as numpy's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
