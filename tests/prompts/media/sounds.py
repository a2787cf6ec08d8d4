"""Sounds, for the tests of this folder."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

from tests.prompts.media.pictures import data_url


def wav(num_samples: int, rate: int = 16000, width: int = 2, channels: int = 1) -> bytes:
    """Return a WAV file of silence."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(bytes(num_samples * width * channels))
    return out.getvalue()


def wav_of(*chunks: tuple[bytes, bytes], claimed: int | None = None) -> bytes:
    """Return a WAV file of these chunks; `claimed` is the length that its header gives instead of
    the true one."""
    body = b"WAVE" + b"".join(
        [
            name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
            for name, data in chunks
        ]
    )
    return b"RIFF" + struct.pack("<I", len(body) if claimed is None else claimed) + body


def wav_format(
    kind: int = 1, channels: int = 1, rate: int = 16000, width: int = 2, bits: int = 16
) -> tuple[bytes, bytes]:
    """Return the chunk that says what the samples are."""
    return b"fmt ", struct.pack("<HHIIHH", kind, channels, rate, rate * width, width, bits)


def sound(data: bytes, **members: Any) -> dict[str, Any]:
    """Return a part with a sound."""
    return {"type": "audio_url", "audio_url": {"url": data_url(data, "audio/wav")}, **members}
