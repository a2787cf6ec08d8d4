"""The length of a sound is what all of vLLM's readers make of its file, else it is unknown."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from tests.prompts.media.pictures import data_url
from tests.prompts.media.sounds import wav, wav_format, wav_of

from inferway.prompts.media.rule import Sound
from inferway.prompts.media.sound import MAX_SECONDS, UnknownSoundError, resampled, sound_of

SILENCE = (b"data", bytes(200))
WORDS = (b"LIST", b"INFOISFT\x04\0\0\0me\0\0")


def test_lengths_of_drawn_sounds_are_those_that_are_written() -> None:
    draw = random.Random(48)
    for _ in range(40):
        rate = draw.choice([8000, 11025, 16000, 24000, 44100, 48000, 192000])
        number, width = draw.randint(1, 30_000), draw.choice([1, 2, 3, 4])

        assert sound_of(data_url(wav(number, rate, width))) == Sound(number, rate), (rate, width)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(wav_of(wav_format(), WORDS, SILENCE), id="words-before"),
        pytest.param(wav_of(wav_format(), SILENCE, WORDS), id="words-behind"),
        pytest.param(
            wav_of(wav_format(kind=3, width=4, bits=32), (b"data", bytes(400))), id="floats"
        ),
        pytest.param(
            wav_of(wav_format(), (b"fact", struct.pack("<I", 9)), SILENCE), id="fact-that-lies"
        ),
    ],
)
def test_chunks_that_every_reader_skips_change_no_length(data: bytes) -> None:
    assert sound_of(data_url(data)) == Sound(100, 16000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"RIFF", id="nearly-nothing"),
        pytest.param(b"ID3\x04" + bytes(100), id="another-format"),
        pytest.param(wav(0), id="no-samples"),
        pytest.param(wav(100, channels=2), id="two-channels"),
        pytest.param(wav(100, rate=7999), id="untried-rate"),
        pytest.param(wav_of(wav_format(rate=0), SILENCE), id="zero-rate"),
        pytest.param(wav_of(wav_format(channels=0, width=0), SILENCE), id="no-channel"),
        pytest.param(wav_of(wav_format(width=4), SILENCE), id="width-that-lies"),
        pytest.param(wav_of(wav_format(kind=0xFFFE), SILENCE), id="extensible"),
        pytest.param(wav_of(wav_format(kind=6, width=1, bits=8), SILENCE), id="compressed"),
        pytest.param(wav_of(wav_format(), (b"data", bytes(201))), id="half-a-sample"),
        pytest.param(wav_of(wav_format(), SILENCE, SILENCE), id="samples-twice"),
        pytest.param(wav_of(wav_format(), wav_format(rate=8000), SILENCE), id="two-rates"),
        pytest.param(wav_of(SILENCE, wav_format()), id="samples-before-their-format"),
        pytest.param(wav_of(wav_format()), id="only-a-format"),
        pytest.param(wav_of(wav_format(), (b"ds64", bytes(28)), SILENCE), id="another-chunk"),
        pytest.param(wav_of(wav_format(), SILENCE, claimed=0), id="streamed"),
        pytest.param(wav_of(wav_format(), SILENCE, claimed=2**32 - 1), id="streamed-without-end"),
        pytest.param(wav_of(wav_format(), SILENCE) + b"more", id="bytes-behind-its-end"),
        pytest.param(wav(1000)[:1024], id="cut"),
        pytest.param(
            wav(100)[:40] + struct.pack("<I", 2**32 - 1) + bytes(200), id="4-gb-in-a-small-file"
        ),
        pytest.param(wav(MAX_SECONDS * 8000 + 1, 8000, 1), id="longer-than-engines-take"),
        pytest.param(wav_of(wav_format(), *[(b"LIST", b"")] * 30_000, SILENCE), id="many-chunks"),
    ],
)
def test_length_is_unknown_of_what_readers_may_differ_on(data: bytes) -> None:
    with pytest.raises(UnknownSoundError):
        sound_of(data_url(data))


@pytest.mark.parametrize(
    "url",
    [
        data_url(wav(100))[:-3],
        "data:audio/wav;base64,@@@@" + data_url(wav(100)).partition(",")[2],
        "data:audio/wav;base64",
        "data:audio/wav,abcd",
        "data:,",
    ],
)
def test_length_is_unknown_where_the_base64_is_none(url: str) -> None:
    with pytest.raises(UnknownSoundError):
        sound_of(url)


def test_little_of_a_long_sound_is_decoded() -> None:
    url = data_url(wav(500_000))

    tracemalloc.start()
    sound_of(url)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 50_000


# What torchaudio made of them, as vLLM 0.32 calls it (multimodal/audio.py).
RESAMPLED = [
    (1, 44100, 1),
    (1, 8000, 2),
    (1, 16000, 1),
    (441, 44100, 160),
    (442, 44100, 161),
    (3_000_000, 48000, 1_000_000),
    (2_150_028, 11025, 3_120_222),  # one less than there are: it rounds to 32 bits
]


@pytest.mark.parametrize(("number", "rate", "made"), RESAMPLED)
def test_sound_at_another_rate_has_the_length_that_torchaudio_gives_it(
    number: int, rate: int, made: int
) -> None:
    assert resampled(Sound(number, rate), 16000) == made
