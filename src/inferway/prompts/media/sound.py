"""The length of a sound in a data URL, by its header: nothing is decoded.

Engines read a sound with torchcodec, soundfile or PyAV, whichever they have (vLLM 0.32,
multimodal/media/audio.py), and resample it with torchaudio. The three agree on files of one kind:
WAV with plain samples of one channel. Of two channels vLLM makes twice as many samples with PyAV,
and headers of other formats may claim another length than is decoded.
"""

from __future__ import annotations

import io
import math
import struct

import numpy as np

from inferway.prompts.media.picture import Base64File, data_at
from inferway.prompts.media.rule import Sound

MAX_SECONDS = 600  # vLLM's default for VLLM_MAX_AUDIO_DECODE_DURATION_S: a longer sound is refused

_RATES = range(8_000, 192_001)
_SAMPLES = {(1, 8), (1, 16), (1, 24), (1, 32), (3, 32)}  # format (1: integers, 3: floats) and bits
_SKIPPED = (b"LIST", b"fact")


class UnknownSoundError(Exception):
    """The length of a sound cannot be told: it is none, or of a format that is not read here."""


def sound_of(url: str) -> Sound:
    """Return the length of the sound in a data URL. Raises UnknownSoundError."""
    try:
        sound = _wav(Base64File(url, data_at(url)))
    except Exception as e:  # whatever a client's bytes make of a reader of files
        raise UnknownSoundError(f"no plain WAV: {type(e).__name__}") from e
    if not 0 < sound.num_samples <= MAX_SECONDS * sound.rate:
        raise UnknownSoundError(f"{sound.num_samples} samples are refused by engines")
    return sound


def resampled(sound: Sound, rate: int) -> int:
    """Return how many samples torchaudio makes of a sound at another rate; it rounds to 32 bits
    (functional/functional.py, `_apply_sinc_resample_kernel`)."""
    if sound.rate == rate:
        return sound.num_samples
    common = math.gcd(sound.rate, rate)
    return math.ceil(np.float32(rate // common * sound.num_samples / (sound.rate // common)))


def _wav(file: Base64File) -> Sound:
    """Return the length of a WAV whose header is in order. Raises an error for any other file."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    riff, size, kind = struct.unpack("<4sI4s", file.read(12))
    if (riff, kind) != (b"RIFF", b"WAVE") or size + 8 != end:
        raise ValueError("no WAV, or one of another length")
    samples: tuple[int, int] | None = None  # the rate, and the bytes of one sample
    length: int | None = None
    at = 12
    while at < end:
        file.seek(at)
        name, size = struct.unpack("<4sI", file.read(8))
        if at + 8 + size > end:
            raise ValueError("a chunk that ends behind the file")
        if name == b"fmt " and samples is None and size in (16, 18):
            samples = _format(file.read(16))
        elif name == b"data" and samples is not None and length is None:
            length = size
        elif name not in _SKIPPED:
            raise ValueError("a chunk that readers may take for something else")
        at += 8 + size + size % 2
    if samples is None or length is None or length % samples[1]:
        raise ValueError("no whole samples")
    return Sound(length // samples[1], samples[0])


def _format(data: bytes) -> tuple[int, int]:
    kind, channels, rate, bytes_a_second, width, bits = struct.unpack("<HHIIHH", data)
    is_plain = (kind, bits) in _SAMPLES and channels == 1 and rate in _RATES
    if not is_plain or width != bits // 8 or bytes_a_second != rate * width:
        raise ValueError("samples of another kind, or a header that contradicts itself")
    return rate, width
