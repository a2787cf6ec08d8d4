"""InternVL: a picture becomes the tokens of the tiles that it is cut into, and of its thumbnail.

Sources: vLLM 0.32, model_executor/models/internvl.py and interns1.py (`_get_prompt_updates`),
transformers_utils/processors/internvl.py; transformers 5.19,
models/got_ocr2/image_processing_got_ocr2.py.
"""

from __future__ import annotations

from inferway.model import TokenIds
from inferway.prompts.media.by_text import by_text
from inferway.prompts.media.rule import Expanded, MediaModel, MediaRule, Size, resizes_with
from inferway.prompts.media.tiles import count_with_thumbnail, grids


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of an InternVLChatModel, for which vLLM has a processor of its own."""
    config, vision = model.config, model.config["vision_config"]
    tile, is_cut = vision["image_size"], config["dynamic_image_size"]
    if not config["use_thumbnail"]:
        return None
    length = int((tile // vision["patch_size"]) ** 2 * (config["downsample_ratio"] ** 2))
    bounds = (config["min_dynamic_patch"], config["max_dynamic_patch"]) if is_cut else (1, 1)
    return _rule(model, "<image>", grids(*bounds), tile, length)


def rule_of_hf(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model in Hugging Face's format, whose processor cuts pictures whatever
    its file says."""
    processor = model.processor
    tile = processor["size"]["height"]
    if tile != processor["size"]["width"] or not resizes_with(processor, "GotOcr2ImageProcessor"):
        return None
    candidates = grids(processor["min_patches"], processor["max_patches"])
    return _rule(model, "<IMG_CONTEXT>", candidates, tile, processor["image_seq_length"])


def _rule(
    model: MediaModel, placeholder: str, candidates: list[Size], tile: int, length: int
) -> MediaRule | None:
    begin, image, end = (model.token_id(text) for text in ("<img>", "<IMG_CONTEXT>", "</img>"))
    if begin is None or image is None or end is None:
        return None

    def expand(size: Size) -> list[int]:
        count = count_with_thumbnail(size, candidates, tile)
        return [begin, *[image] * (count * length), end]

    def anew(ids: TokenIds, count: int) -> Expanded | None:
        return by_text(model, ids, [placeholder] * count, "<img></img>")

    return MediaRule(placeholder, tuple(model.encode(placeholder)), expand, by_text=anew)
