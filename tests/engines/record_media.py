"""Records what vLLM's own processors make of drawn_pictures.py for the families of tiny_vision.py:
`{family: [[spans, checksum of the ids], ...]}`, null where they refuse. Run by vLLM's own Python,
with its torchvision in PYTHONPATH:

    .venv-vllm/bin/python -m tests.engines.record_media [FILE [SEED COUNT [FAMILY ...]]]
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from array import array
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from zlib import crc32

from tests.engines.drawn_pictures import Drawn, drawn_pictures
from tests.engines.tiny_vision import FAMILIES, write_vision_model

RECORDED = Path(__file__).parents[1] / "golden" / "media" / "vllm_pictures.json.xz"
SEED, COUNT = 48, 600  # of what is recorded

Made = tuple[list[tuple[int, int]], int]


class Stock:
    """vLLM's processor of a model, without a cache of pictures."""

    def __init__(self, folder: Path) -> None:
        config = import_module("vllm.config").ModelConfig(
            model=str(folder),
            max_model_len=32768,
            limit_mm_per_prompt={"image": 16},
            mm_processor_cache_gb=0,
            trust_remote_code=True,
        )
        registry = import_module("vllm.multimodal").MULTIMODAL_REGISTRY
        self._processor = registry.create_processor(config)
        self._image = import_module("PIL.Image")

    def made(self, drawn: Drawn) -> Made | None:
        """Return the places of the pictures and the checksum of the ids; None if it is refused."""
        info = self._processor.info
        pictures = [self._image.new("RGB", size) for size in drawn.sizes]
        ids = info.get_tokenizer().encode(drawn.text, add_special_tokens=False)
        try:
            made = self._processor(ids, info.parse_mm_data({"image": pictures}))
        except Exception:
            return None
        spans = [(place.offset, place.length) for place in made["mm_placeholders"]["image"]]
        return spans, checksum(made["prompt_token_ids"])


def checksum(ids: Sequence[int]) -> int:
    """Return a number that differs where ids differ."""
    return crc32(array("I", ids).tobytes())


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    count = int(sys.argv[3]) if len(sys.argv) > 3 else COUNT
    rows: dict[str, list[Made | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[4:] or FAMILIES:
            stock = Stock(write_vision_model(name, Path(folder) / name))
            drawn = drawn_pictures(FAMILIES[name].picture, seed, count)
            rows[name] = [stock.made(each) for each in drawn]
    file.write_bytes(lzma.compress(json.dumps(rows).encode(), preset=9))
    known = sum(row is not None for each in rows.values() for row in each)
    print(f"{file}: {len(rows)} families, {known} chats")


if __name__ == "__main__":
    main()
