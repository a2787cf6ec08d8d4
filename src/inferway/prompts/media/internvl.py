"""InternVL: a picture becomes the tokens of the tiles that it is cut into, and of its thumbnail.

Sources: vLLM 0.32, model_executor/models/internvl.py and interns1.py (`_get_prompt_updates`),
transformers_utils/processors/internvl.py; transformers 5.19,
models/got_ocr2/image_processing_got_ocr2.py.
"""

from __future__ import annotations

from typing import NamedTuple

from inferway.prompts.media.rule import MediaModel, MediaRule, Size, resizes_with
from inferway.prompts.media.tiles import closest, grids


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of an InternVLChatModel, for which vLLM has a processor of its own."""
    config, vision = model.config, model.config["vision_config"]
    tile, is_cut = vision["image_size"], config["dynamic_image_size"]
    length = int((tile // vision["patch_size"]) ** 2 * (config["downsample_ratio"] ** 2))
    bounds = (config["min_dynamic_patch"], config["max_dynamic_patch"]) if is_cut else (1, 1)
    cut = _Cut(tile, grids(*bounds), has_thumbnail=config["use_thumbnail"])
    return _rule(model, "<image>", cut, length)


def rule_of_hf(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model in Hugging Face's format, whose processor cuts pictures whatever
    its file says."""
    processor = model.processor
    tile = processor["size"]["height"]
    if tile != processor["size"]["width"] or not resizes_with(processor, "GotOcr2ImageProcessor"):
        return None
    candidates = grids(processor["min_patches"], processor["max_patches"])
    cut = _Cut(tile, candidates, has_thumbnail=True)
    return _rule(model, "<IMG_CONTEXT>", cut, processor["image_seq_length"])


class _Cut(NamedTuple):
    """The way in which pictures are cut into tiles."""

    tile: int
    grids: list[Size]
    has_thumbnail: bool

    def count(self, size: Size) -> int:
        """Return how many tiles a picture becomes."""
        grid = closest(size, self.grids, self.tile)
        tiles = grid.width * grid.height
        return tiles + (self.has_thumbnail and tiles > 1)


def _rule(model: MediaModel, placeholder: str, cut: _Cut, length: int) -> MediaRule | None:
    begin, image, end = (model.token_id(text) for text in ("<img>", "<IMG_CONTEXT>", "</img>"))
    if begin is None or image is None or end is None:
        return None

    def expand(size: Size) -> list[int]:
        return [begin, *[image] * (cut.count(size) * length), end]

    return MediaRule(placeholder, tuple(model.encode(placeholder)), expand)
