"""GGUF files are read as ggml writes them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.errors import ConfigError
from inferway_sim.prepare import GgufFile


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(path: Path, pairs: bytes, num_pairs: int, tensors: list[tuple[Any, ...]]) -> Path:
    """`tensors`: name, shape as ggml writes it (fastest axis first), type, data."""
    infos, data = b"", b""
    for name, shape, ggml_type, raw in tensors:
        infos += string(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, ggml_type, len(data)
        )
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_pairs) + pairs + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def test_metadata_of_every_kind_is_read(tmp_path: Path) -> None:
    pairs = (
        string("a.text") + struct.pack("<I", 8) + string("é")
        + string("a.flag") + struct.pack("<I?", 7, True)
        + string("a.half") + struct.pack("<If", 6, 0.5)
        + string("a.list") + struct.pack("<IIQ2i", 9, 5, 2, -1, 7)
        + string("a.texts") + struct.pack("<IIQ", 9, 8, 2) + string("x") + string("y")
    )  # fmt: skip

    with GgufFile(gguf(tmp_path / "m.gguf", pairs, 5, [])) as file:
        assert file.metadata == {
            "a.text": "é", "a.flag": True, "a.half": 0.5, "a.list": [-1, 7], "a.texts": ["x", "y"]
        }  # fmt: skip


def test_shapes_are_turned_round(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    path = gguf(tmp_path / "m.gguf", b"", 0, [("t", (3, 2), 0, values.tobytes())])

    with GgufFile(path) as file:
        assert file.read("t").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_eight_bit_blocks_are_scale_times_value(tmp_path: Path) -> None:
    block = struct.pack("<e32b", 0.5, *range(-16, 16))
    path = gguf(tmp_path / "m.gguf", b"", 0, [("t", (32,), 8, block)])

    with GgufFile(path) as file:
        assert file.read("t").tolist() == [i / 2 for i in range(-16, 16)]


def test_four_bit_blocks_have_low_nibbles_first(tmp_path: Path) -> None:
    packed = bytes(i | (15 - i) << 4 for i in range(16))
    path = gguf(tmp_path / "m.gguf", b"", 0, [("t", (32,), 3, struct.pack("<ee", 2, -1) + packed)])

    with GgufFile(path) as file:
        assert file.read("t").tolist() == [
            *(2 * i - 1 for i in range(16)), *(2 * (15 - i) - 1 for i in range(16))
        ]  # fmt: skip


def test_tensors_begin_where_their_offset_says(tmp_path: Path) -> None:
    one, two = (np.full(3, n, np.float32).tobytes() for n in (1, 2))
    path = gguf(tmp_path / "m.gguf", b"", 0, [("one", (3,), 0, one), ("two", (3,), 0, two)])

    with GgufFile(path) as file:
        assert file.read("two").tolist() == [2, 2, 2]


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", b"", 0, [("t", (32,), 99, b"\0" * 32)])

    with GgufFile(path) as file, pytest.raises(ConfigError, match="'t': ggml type 99"):
        file.read("t")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + b"\0" * 40, "not a GGUF file"),
        (b"GGUF" + b"\x09" + b"\0" * 40, "version 9"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=why):
        GgufFile(path)
