"""Tiny vision models, one of each family: a configuration, the processor's values of a released
model, and SmolLM2's tokenizer with the family's tokens. They have no weights: engines start them
with `--load-format dummy`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_TOKENIZER = ROOT / "src" / "inferway_sim" / "smollm2"
_NUM_TOKENS = 49152  # of SmolLM2's vocabulary; those of a family follow

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}"
    "{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if 'text' in c %}{{ c['text'] }}"
    "{% else %}PICTURE{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_OF_TEXT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Family:
    """`config` is a config.json in which the ids of tokens are given as their text, `picture` what
    the chat template writes for a picture, `files` are other files by name."""

    config: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    tokens: tuple[str, ...]
    picture: str
    files: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of tokenizer_config.json
    ids: Mapping[str, int] = field(default_factory=dict)  # of tokens that have fixed ones


def _text(**members: Any) -> dict[str, Any]:
    """Return the text model's part of a configuration."""
    return {
        "vocab_size": 50176,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,  # the CPU's kernel takes no smaller one
        "max_position_embeddings": 32768,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **members,
    }


def _config(architecture: str, model_type: str, **members: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "bfloat16",
        **members,
    }


_QWEN_TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN2_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_QWEN3_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_QWEN3_VIDEO = {**_QWEN3_PROCESSOR, "video_processor_type": "Qwen3VLVideoProcessor"}
_QWEN_VISION = {
    "depth": 2,
    "hidden_size": 128,
    "num_heads": 2,
    "intermediate_size": 128,
    "out_hidden_size": 128,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def _mrope(sections: list[int], **members: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_section": sections, "rope_theta": 10000.0, **members}
    return {"rope_parameters": rope}


_CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 128,
}
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
}
_LLAVA_PROCESSOR = {
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
}
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_ONEVISION_PINPOINTS = [
    [384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)
]
_PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 64,
    "rope_theta": 10000.0,
}
_PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_PIXTRAL_PROCESSOR = {
    "processor_class": "PixtralProcessor",
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}
_GLM_TOKENS = {
    "image_start": "<|begin_of_image|>",
    "image_end": "<|end_of_image|>",
    "video_start": "<|begin_of_video|>",
    "video_end": "<|end_of_video|>",
    "image": "<|image|>",
    "video": "<|video|>",
}
_GLM_PROCESSOR = {
    "processor_class": "Glm4vProcessor",
    "size": {"shortest_edge": 12544, "longest_edge": 9633792},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}

# Stand-ins for code that the released models bring along: their own is not part of vLLM, and has no
# part in what vLLM makes of a prompt, but for the values and functions that it asks them for.
_INTERNVL_CONFIG = """
from transformers import PreTrainedConfig, Qwen2Config

class InternVLChatConfig(PreTrainedConfig):
    model_type = "internvl_chat"

    def __init__(self, vision_config=None, llm_config=None, **kwargs):
        self.vision_config = PreTrainedConfig(**(vision_config or {}))
        self.text_config = Qwen2Config(**(llm_config or {}))
        super().__init__(**kwargs)
"""
_KIMI_PROCESSOR = """
import torch
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessorMixin

class KimiVLImageProcessor(BaseImageProcessor):
    def __init__(self, patch_size, in_token_limit, merge_kernel_size, pad_input, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.in_token_limit = in_token_limit
        self.merge_kernel_size = merge_kernel_size
        self.pad_input = pad_input

    def grid(self, image):
        patch, (rows, columns) = self.patch_size, self.merge_kernel_size
        width, height = image.size
        patches = (width // patch) * (height // patch)
        if patches > self.in_token_limit:
            scale = (self.in_token_limit / patches) ** 0.5
            width, height = int(width * scale), int(height * scale)
        height = -(-height // (rows * patch)) * rows
        width = -(-width // (columns * patch)) * columns
        if max(width, height) >= 512:
            raise ValueError("Exceed pos emb")
        return height, width

    def preprocess(self, images, **kwargs):
        grids = torch.tensor([self.grid(image) for image in images])
        pixels = torch.zeros(int(grids.prod(-1).sum()), 3, self.patch_size, self.patch_size)
        return BatchFeature({"pixel_values": pixels, "image_grid_hws": grids})

class KimiVLProcessor(ProcessorMixin):
    attributes = ["image_processor", "tokenizer"]

    def __init__(self, image_processor=None, tokenizer=None, **kwargs):
        self.image_token = "<|media_pad|>"
        super().__init__(image_processor, tokenizer)

    def __call__(self, images=None, text=None, **kwargs):
        made = self.image_processor.preprocess(images) if images else {}
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})
"""
_PHI_4_CONFIG = """
from transformers import PreTrainedConfig

class Phi4MMConfig(PreTrainedConfig):
    model_type = "phi4mm"
"""
_PHI_4_PROCESSOR = """
import math
import torch
from transformers import BatchFeature
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessorMixin

class Phi4MMImageProcessor(BaseImageProcessor):
    def __init__(self, dynamic_hd, **kwargs):
        super().__init__(**kwargs)
        self.dynamic_hd = dynamic_hd

    def find_closest_aspect_ratio(self, aspect, grids, width, height, tile):
        best, least = (1, 1), float("inf")
        for grid in grids:
            difference = abs(aspect - grid[0] / grid[1])
            covers = width * height > 0.5 * tile * tile * grid[0] * grid[1]
            if difference < least or (difference == least and covers):
                best = grid
            least = min(least, difference)
        return best

    def size(self, image):
        width, height = image.size
        grid = math.ceil(width / 448), math.ceil(height / 448)
        if grid[0] * grid[1] > self.dynamic_hd:
            sides = range(1, self.dynamic_hd + 1)
            grids = {(w, h) for w in sides for h in sides if w * h <= self.dynamic_hd}
            grids = sorted(grids, key=lambda grid: grid[0] * grid[1])
            grid = self.find_closest_aspect_ratio(width / height, grids, width, height, 448)
        scale = min(grid[0] * 448 / width, grid[1] * 448 / height)
        if min(int(width * scale), int(height * scale)) < 10:
            raise ValueError("the aspect ratio is very extreme")
        return grid[1] * 448, grid[0] * 448

    def preprocess(self, images, **kwargs):
        sizes = [self.size(image) for image in images]
        most = max(height * width // 448**2 for height, width in sizes) + 1
        return BatchFeature({
            "input_image_embeds": torch.zeros(len(images), most, 3, 448, 448),
            "image_attention_mask": torch.ones(len(images), most, 32, 32),
            "image_sizes": torch.tensor(sizes),
        })

class Phi4MMAudioFeatureExtractor(SequenceFeatureExtractor):
    def __init__(self, **kwargs):
        super().__init__(80, 16000, 0.0, **kwargs)

class Phi4MMProcessor(ProcessorMixin):
    attributes = ["image_processor", "audio_processor", "tokenizer"]
    image_processor_class = "AutoImageProcessor"
    audio_processor_class = "AutoFeatureExtractor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor, audio_processor, tokenizer, **kwargs):
        self.image_processor = image_processor
        self.audio_processor = audio_processor
        self.tokenizer = tokenizer

    def __call__(self, text, images=None, audios=None, **kwargs):
        made = self.image_processor.preprocess(images) if images else {}
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})
"""
_DEEPSEEK = {
    "kv_lora_rank": None,
    "q_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "architectures": ["DeepseekV2ForCausalLM"],
}


FAMILIES: Mapping[str, Family] = {
    "qwen2_vl": Family(
        _config(
            "Qwen2VLForConditionalGeneration",
            "qwen2_vl",
            text_config=_text(model_type="qwen2_vl_text", **_mrope([8, 12, 12])),
            vision_config={
                **_QWEN_VISION,
                "embed_dim": 128,
                "mlp_ratio": 2,
                "patch_size": 14,
            },
            **_QWEN_IDS,
        ),
        _QWEN2_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_PICTURE,
    ),
    "qwen2_5_vl": Family(
        _config(
            "Qwen2_5_VLForConditionalGeneration",
            "qwen2_5_vl",
            text_config=_text(model_type="qwen2_5_vl_text", **_mrope([8, 12, 12])),
            vision_config={**_QWEN_VISION, "patch_size": 14, "fullatt_block_indexes": [1]},
            **_QWEN_IDS,
        ),
        {**_QWEN2_PROCESSOR, "processor_class": "Qwen2_5_VLProcessor"},
        _QWEN_TOKENS,
        _QWEN_PICTURE,
    ),
    "qwen3_vl": Family(
        _config(
            "Qwen3VLForConditionalGeneration",
            "qwen3_vl",
            text_config=_text(
                model_type="qwen3_vl_text", **_mrope([12, 10, 10], mrope_interleaved=True)
            ),
            vision_config={
                **_QWEN_VISION,
                "patch_size": 16,
                "num_position_embeddings": 2304,
                "deepstack_visual_indexes": [0],
            },
            **_QWEN_IDS,
        ),
        _QWEN3_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_PICTURE,
        {"video_preprocessor_config.json": _QWEN3_VIDEO},
    ),
    "qwen3_5": Family(
        _config(
            "Qwen3_5ForConditionalGeneration",
            "qwen3_5",
            text_config=_text(
                model_type="qwen3_5_text",
                num_hidden_layers=4,
                linear_conv_kernel_dim=4,
                linear_key_head_dim=64,
                linear_value_head_dim=64,
                linear_num_key_heads=1,
                linear_num_value_heads=2,
                **_mrope([3, 3, 2], mrope_interleaved=True, partial_rotary_factor=0.25),
            ),
            vision_config={
                **_QWEN_VISION,
                "patch_size": 16,
                "num_position_embeddings": 2304,
                "deepstack_visual_indexes": [],
            },
            **_QWEN_IDS,
        ),
        _QWEN3_PROCESSOR,
        _QWEN_TOKENS,
        _QWEN_PICTURE,
        {"video_preprocessor_config.json": _QWEN3_VIDEO},
    ),
    "llava": Family(
        _config(
            "LlavaForConditionalGeneration",
            "llava",
            text_config=_text(model_type="llama"),
            vision_config=_CLIP,
            image_token_index="<image>",
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
        ),
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336},
        },
        ("<image>",),
        "<image>",
        {"processor_config.json": {**_LLAVA_PROCESSOR, "processor_class": "LlavaProcessor"}},
    ),
    "llava_next": Family(
        _config(
            "LlavaNextForConditionalGeneration",
            "llava_next",
            text_config=_text(model_type="llama"),
            vision_config=_CLIP,
            image_token_index="<image>",
            image_grid_pinpoints=_PINPOINTS,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
        ),
        {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 336},
            "crop_size": {"height": 336, "width": 336},
            "image_grid_pinpoints": _PINPOINTS,
            "do_pad": True,
        },
        ("<image>",),
        "<image>",
        {"processor_config.json": {**_LLAVA_PROCESSOR, "processor_class": "LlavaNextProcessor"}},
    ),
    "llava_onevision": Family(
        _config(
            "LlavaOnevisionForConditionalGeneration",
            "llava_onevision",
            text_config=_text(model_type="qwen2"),
            vision_config={**_SIGLIP, "image_size": 384, "vision_use_head": False},
            image_token_index="<image>",
            video_token_index="<video>",
            image_grid_pinpoints=_ONEVISION_PINPOINTS,
            vision_aspect_ratio="anyres_max_9",
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 384, "width": 384},
            "image_grid_pinpoints": _ONEVISION_PINPOINTS,
            "do_pad": True,
        },
        ("<image>", "<video>"),
        "<image>",
        {
            "processor_config.json": {
                "processor_class": "LlavaOnevisionProcessor",
                "image_token": "<image>",
                "video_token": "<video>",
                "num_image_tokens": 729,
                "vision_feature_select_strategy": "full",
            },
            "video_preprocessor_config.json": {
                "video_processor_type": "LlavaOnevisionVideoProcessor",
                "size": {"height": 384, "width": 384},
            },
        },
    ),
    "gemma_3": Family(
        _config(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            text_config=_text(
                model_type="gemma3_text",
                sliding_window=512,
                query_pre_attn_scalar=64,
                layer_types=["sliding_attention", "full_attention"],
            ),
            vision_config={**_SIGLIP, "image_size": 896},
            boi_token_index="<start_of_image>",
            eoi_token_index="<end_of_image>",
            image_token_index="<image_soft_token>",
            mm_tokens_per_image=256,
        ),
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256,
            "size": {"height": 896, "width": 896},
            "do_pan_and_scan": None,
        },
        (
            "<start_of_image>",
            "<end_of_image>",
            "<image_soft_token>",
            "\n",
            "\n\n",
            "\n\n\n",
            "\n\n\n\n",
        ),
        "<start_of_image>",
        {
            "processor_config.json": {
                "processor_class": "Gemma3Processor",
                "image_seq_length": 256,
            }
        },
        {
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
            "extra_special_tokens": {
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "image_token": "<image_soft_token>",
            },
        },
    ),
    "pixtral": Family(
        _config(
            "LlavaForConditionalGeneration",
            "llava",
            text_config=_text(model_type="mistral", sliding_window=None),
            vision_config={**_PIXTRAL, "image_size": 1024, "patch_size": 16},
            image_seq_length=1,
            image_token_index="[IMG]",
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        {
            "image_processor_type": "PixtralImageProcessor",
            "processor_class": "PixtralProcessor",
            "patch_size": {"height": 16, "width": 16},
            "size": {"longest_edge": 1024},
        },
        _PIXTRAL_TOKENS,
        "[IMG]",
        {"processor_config.json": {**_PIXTRAL_PROCESSOR, "patch_size": 16}},
    ),
    "mistral_3": Family(
        _config(
            "Mistral3ForConditionalGeneration",
            "mistral3",
            text_config=_text(model_type="mistral", sliding_window=None),
            vision_config={**_PIXTRAL, "image_size": 1540, "patch_size": 14},
            image_token_index="[IMG]",
            spatial_merge_size=2,
            multimodal_projector_bias=False,
            vision_feature_layer=-1,
        ),
        {
            "image_processor_type": "PixtralImageProcessorFast",
            "processor_class": "PixtralProcessor",
            "patch_size": 14,
            "size": {"longest_edge": 1540},
        },
        _PIXTRAL_TOKENS,
        "[IMG]",
        {
            "processor_config.json": {
                **_PIXTRAL_PROCESSOR,
                "patch_size": 14,
                "spatial_merge_size": 2,
            }
        },
    ),
    "internvl_hf": Family(
        _config(
            "InternVLForConditionalGeneration",
            "internvl",
            text_config=_text(model_type="qwen2"),
            vision_config={
                "model_type": "internvl_vision",
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": [448, 448],
                "patch_size": [14, 14],
            },
            image_token_id="<IMG_CONTEXT>",
            image_seq_length=256,
            downsample_ratio=0.5,
        ),
        {
            "image_processor_type": "GotOcr2ImageProcessorFast",
            "processor_class": "InternVLProcessor",
            "crop_to_patches": False,
            "min_patches": 1,
            "max_patches": 12,
            "size": {"height": 448, "width": 448},
        },
        ("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        "<IMG_CONTEXT>",
        {
            "processor_config.json": {
                "processor_class": "InternVLProcessor",
                "image_seq_length": 256,
            },
            "video_preprocessor_config.json": {
                "video_processor_type": "InternVLVideoProcessor",
                "size": {"height": 448, "width": 448},
            },
        },
        {
            "extra_special_tokens": {
                "context_image_token": "<IMG_CONTEXT>",
                "start_image_token": "<img>",
                "end_image_token": "</img>",
                "video_token": "<video>",
            }
        },
    ),
    "llama_4": Family(
        _config(
            "Llama4ForConditionalGeneration",
            "llama4",
            text_config=_text(
                model_type="llama4_text",
                intermediate_size_mlp=256,
                num_local_experts=2,
                attention_chunk_size=8192,
                num_hidden_layers=4,
            ),
            vision_config={
                "model_type": "llama4_vision_model",
                "hidden_size": 128,
                "intermediate_size": 512,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 336,
                "patch_size": 14,
                "pixel_shuffle_ratio": 0.5,
                "projector_input_dim": 128,
                "projector_output_dim": 128,
                "vision_output_dim": 128,
            },
            boi_token_index="<|image_start|>",
            eoi_token_index="<|image_end|>",
            image_token_index="<|patch|>",
        ),
        {
            "image_processor_type": "Llama4ImageProcessorFast",
            "processor_class": "Llama4Processor",
            "max_patches": 16,
            "resize_to_max_canvas": False,
            "size": {"height": 336, "width": 336},
        },
        (
            "<|image_start|>",
            "<|image_end|>",
            "<|image|>",
            "<|patch|>",
            "<|tile_x_separator|>",
            "<|tile_y_separator|>",
        ),
        "<|image|>",
        {
            "processor_config.json": {
                "processor_class": "Llama4Processor",
                "patch_size": 14,
                "pixel_shuffle_ratio": 0.5,
            }
        },
    ),
    "glm_4_1v": Family(
        _config(
            "Glm4vForConditionalGeneration",
            "glm4v",
            text_config=_text(
                model_type="glm4v_text", **_mrope([4, 6, 6], partial_rotary_factor=0.5)
            ),
            vision_config={
                "model_type": "glm4v",
                "depth": 2,
                "hidden_size": 128,
                "num_heads": 2,
                "intermediate_size": 128,
                "out_hidden_size": 128,
                "image_size": 336,
                "patch_size": 14,
            },
            **{f"{name}_token_id": token for name, token in _GLM_TOKENS.items()},
        ),
        {**_GLM_PROCESSOR, "image_processor_type": "Glm4vImageProcessor"},
        tuple(_GLM_TOKENS.values()),
        "<|begin_of_image|><|image|><|end_of_image|>",
        {
            "video_preprocessor_config.json": {
                **_GLM_PROCESSOR,
                "video_processor_type": "Glm4vVideoProcessor",
            }
        },
    ),
    "deepseek_ocr": Family(
        _config(
            "DeepseekOCRForCausalLM",
            "deepseek_vl_v2",
            language_config=_text(model_type="deepseek_v2", use_mla=False, **_DEEPSEEK),
            vision_config={
                "model_type": "vision",
                "image_size": 1024,
                "width": {"clip-l-14-224": {}, "sam_vit_b": {}},
            },
            projector_config={"projector_type": "linear", "input_dim": 2048, "n_embed": 128},
            candidate_resolutions=[[1024, 1024]],
            tile_tag="2D",
            global_view_pos="head",
        ),
        {},
        ("<image>", "<｜▁pad▁｜>"),
        "<image>",
        {"processor_config.json": {"processor_class": "DeepseekVLV2Processor"}},
    ),
    "internvl_chat": Family(
        _config(
            "InternVLChatModel",
            "internvl_chat",
            auto_map={"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
            llm_config=_text(model_type="qwen2", architectures=["Qwen2ForCausalLM"]),
            vision_config={
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 448,
                "patch_size": 14,
                "num_channels": 3,
                "qkv_bias": True,
                "qk_normalization": False,
                "norm_type": "layer_norm",
                "layer_norm_eps": 1e-6,
                "hidden_act": "gelu",
                "initializer_factor": 0.1,
                "initializer_range": 0.02,
            },
            downsample_ratio=0.5,
            dynamic_image_size=True,
            force_image_size=448,
            max_dynamic_patch=12,
            min_dynamic_patch=1,
            ps_version="v2",
            select_layer=-1,
            use_thumbnail=True,
        ),
        {},
        ("<img>", "</img>", "<IMG_CONTEXT>"),
        "<image>",
        {"configuration_internvl_chat.py": _INTERNVL_CONFIG},
    ),
    "kimi_vl": Family(
        _config(
            "KimiVLForConditionalGeneration",
            "kimi_vl",
            text_config=_text(
                model_type="deepseek_v2",
                **{
                    **_DEEPSEEK,
                    "kv_lora_rank": 512,
                    "qk_nope_head_dim": 128,
                    "qk_rope_head_dim": 64,
                    "v_head_dim": 128,
                },
            ),
            vision_config={
                "model_type": "moonvit",
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "patch_size": 14,
                "merge_kernel_size": [2, 2],
                "init_pos_emb_height": 64,
                "init_pos_emb_width": 64,
            },
            media_placeholder_token_id="<|media_pad|>",
        ),
        {
            "auto_map": {
                "AutoImageProcessor": "processing_kimi_vl.KimiVLImageProcessor",
                "AutoProcessor": "processing_kimi_vl.KimiVLProcessor",
            },
            "image_processor_type": "KimiVLImageProcessor",
            "in_token_limit": 4096,
            "merge_kernel_size": [2, 2],
            "num_pooled_tokens": 1024,
            "pad_input": True,
            "patch_size": 14,
        },
        ("<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
        "<|media_start|>image<|media_content|><|media_pad|><|media_end|>",
        {"processing_kimi_vl.py": _KIMI_PROCESSOR},
    ),
    "phi_4": Family(
        _config(
            "Phi4MMForCausalLM",
            "phi4mm",
            auto_map={"AutoConfig": "configuration_phi4mm.Phi4MMConfig"},
            **{
                **_text(vocab_size=200064, hidden_act="silu", rms_norm_eps=1e-5),
                "partial_rotary_factor": 0.75,
                "tie_word_embeddings": True,
            },
            img_processor=None,
            audio_processor=None,
            embd_layer={"audio_embd_layer": {"compression_rate": 8}},
        ),
        {
            "auto_map": {
                "AutoProcessor": "processing_phi4mm.Phi4MMProcessor",
                "AutoImageProcessor": "processing_phi4mm.Phi4MMImageProcessor",
                "AutoFeatureExtractor": "processing_phi4mm.Phi4MMAudioFeatureExtractor",
            },
            "image_processor_type": "Phi4MMImageProcessor",
            "processor_class": "Phi4MMProcessor",
            "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
            "dynamic_hd": 36,
            "audio_compression_rate": 8,
            "audio_downsample_rate": 1,
            "audio_feat_stride": 1,
        },
        (),
        "<|image_{}|>",
        {
            "configuration_phi4mm.py": _PHI_4_CONFIG,
            "processing_phi4mm.py": _PHI_4_PROCESSOR,
        },
        ids={"<|endoftext10|>": 200010, "<|endoftext11|>": 200011},
    ),
}


def token_ids(name: str) -> dict[str, int]:
    """Return the ids of the tokens that a family has beside SmolLM2's."""
    return _token_ids(FAMILIES[name])


def _token_ids(family: Family) -> dict[str, int]:
    return {token: _NUM_TOKENS + i for i, token in enumerate(family.tokens)} | dict(family.ids)


def config_of(name: str) -> dict[str, Any]:
    """Return the config.json of a family's tiny model."""
    return _with_ids(FAMILIES[name].config, token_ids(name))


def write_vision_model(name: str, made: Path) -> Path:
    """Write the tiny model of a family in FAMILIES into the folder `made`, which is not there."""
    return write_model(FAMILIES[name], made)


def write_model(family: Family, made: Path) -> Path:
    """Write the tiny model of a family into the folder `made`, which is not there."""
    ids = _token_ids(family)
    # Where pictures are numbered, vLLM writes their text in front of the message's.
    is_numbered = "{}" in family.picture
    template = _OF_TEXT if is_numbered else _TEMPLATE.replace("PICTURE", family.picture)
    made.mkdir(parents=True)
    tokenizer = json.loads((_TOKENIZER / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= family.ids
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {id: {"content": token, "special": True, **flags} for token, id in ids.items()}
    tokenizer["added_tokens"] += [{"id": id, **token} for id, token in added.items()]
    settings = {
        **json.loads((_TOKENIZER / "tokenizer_config.json").read_text()),
        **family.settings,
        "chat_template": template,
        "additional_special_tokens": list(ids),
        "added_tokens_decoder": added,
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "config.json": _with_ids(family.config, ids),
        "preprocessor_config.json": family.preprocessor,
        "chat_template.jinja": template,  # processors with one of their own take a file alone
        **family.files,
    }
    for file, content in files.items():
        (made / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return made


def _with_ids(config: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the configuration with the ids of tokens in place of their text."""
    return {name: _with_id(value, ids) for name, value in config.items()}


def _with_id(value: Any, ids: Mapping[str, int]) -> Any:
    if isinstance(value, Mapping):
        return _with_ids(value, ids)
    return ids.get(value, value) if isinstance(value, str) else value
