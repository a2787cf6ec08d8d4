"""Records what vLLM's own processors make of drawn_sounds.py for the families of tiny_sound.py:
`{family: [[places of sounds, places of pictures, checksum of the ids], ...]}`, null where they
refuse. Run by vLLM's own Python, with its torchvision in PYTHONPATH, and with torchaudio, by which
it resamples:

    .venv-vllm/bin/python -m tests.engines.record_sounds [FILE [SEED COUNT [FAMILY ...]]]
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from tests.engines.drawn_sounds import Drawn, drawn_sounds
from tests.engines.record_media import checksum
from tests.engines.tiny_sound import FAMILIES
from tests.engines.tiny_vision import write_model

RECORDED = Path(__file__).parents[1] / "golden" / "media" / "vllm_sounds.json.xz"
SEED, COUNT = 48, 60  # of what is recorded

Places = list[tuple[int, int]]
Made = tuple[Places, Places, int]


class Stock:
    """vLLM's processor of a model, without a cache of items."""

    def __init__(self, folder: Path, modalities: list[str]) -> None:
        config = import_module("vllm.config").ModelConfig(
            model=str(folder),
            max_model_len=32768,
            limit_mm_per_prompt=dict.fromkeys(modalities, 16),
            mm_processor_cache_gb=0,
        )
        registry = import_module("vllm.multimodal").MULTIMODAL_REGISTRY
        self._processor = registry.create_processor(config)
        self._image = import_module("PIL.Image")
        from_file = import_module("tokenizers").Tokenizer.from_file
        self._tokenizer = from_file(str(folder / "tokenizer.json"))

    def made(self, drawn: Drawn) -> Made | None:
        """Return the places of the items and the checksum of the ids; None if it is refused."""
        items: dict[str, list[Any]] = {
            "audio": [(np.zeros(number, np.float32), rate) for number, rate in drawn.sounds]
        }
        if drawn.sizes:
            items["image"] = [self._image.new("RGB", size) for size in drawn.sizes]
        ids = self._tokenizer.encode(drawn.text, add_special_tokens=False).ids
        try:
            made = self._processor(ids, self._processor.info.parse_mm_data(items))
        except Exception:
            return None
        sounds, pictures = (
            [(place.offset, place.length) for place in made["mm_placeholders"].get(kind, ())]
            for kind in ("audio", "image")
        )
        return sounds, pictures, checksum(made["prompt_token_ids"])


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    count = int(sys.argv[3]) if len(sys.argv) > 3 else COUNT
    rows: dict[str, list[Made | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[4:] or FAMILIES:
            family = FAMILIES[name]
            modalities = ["audio", "image"] if family.picture else ["audio"]
            stock = Stock(write_model(family, Path(folder) / name), modalities)
            rows[name] = [stock.made(each) for each in drawn_sounds(name, seed, count)]
    file.write_bytes(lzma.compress(json.dumps(rows).encode(), preset=9))
    known = sum(row is not None for each in rows.values() for row in each)
    print(f"{file}: {len(rows)} families, {known} chats")


if __name__ == "__main__":
    main()
