"""Writes vllm_media.jsonl.gz anew: `/path/to/vllm-venv/bin/python record_vllm_media.py`.

Two small multimodal models without weights, served by `vllm launch render`: its processors are
the engine's own. Needs torchvision beside vLLM's torch; its CUDA build will do on the CPU too, from
a PYTHONPATH of its own and with torchvision/_meta_registrations.py emptied.
"""
# mypy: ignore-errors

import base64
import gzip
import io
import json
import lzma
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "data"
PORT = 18_123
VLLM = Path(sys.executable).with_name("vllm")

COMMON = {"torch_dtype": "bfloat16"}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
QWEN_TOKENS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
               "<|image_pad|>", "<|video_pad|>"]  # fmt: skip


def llava(ids: dict, vocab_size: int) -> dict:
    vision = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
    return {
        **COMMON,
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": ids["<image>"],
        "image_seq_length": 576,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "text_config": {**SIZES, "model_type": "llama", "vocab_size": vocab_size},
        "vision_config": {**SIZES, **vision, "projection_dim": 64},
    }


def qwen(ids: dict, vocab_size: int) -> dict:
    vision = {
        "depth": 2,
        "num_heads": 4,
        "in_chans": 3,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    }
    return {
        **COMMON,
        **SIZES,
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": vocab_size,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": {"hidden_size": 64, "intermediate_size": 128, **vision},
    }


NORMAL = {"image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.26, 0.27]}
MODELS = {
    "llava": {
        "template": "062054e6d1186956",
        "tokens": ["<image>"],
        "config": llava,
        "preprocessor": {
            **NORMAL,
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "crop_size": {"height": 336, "width": 336},
            "size": {"shortest_edge": 336},
        },
        "processor": {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
    "qwen2.5-vl": {
        "template": "a0bc6f6fc7a29a80",
        "tokens": QWEN_TOKENS,
        "config": qwen,
        "preprocessor": {
            **NORMAL,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
        "processor": {"processor_class": "Qwen2_5_VLProcessor"},
    },
}
AS_TEXT = ("--chat-template-content-format", "string")
RUNS = [
    ("llava", ()),
    ("qwen2.5-vl", ()),
    ("qwen2.5-vl", AS_TEXT),
    ("qwen2.5-vl", (*AS_TEXT, "--interleave-mm-strings")),
]

IMAGE = {"type": "image_url", "image_url": {"url": "IMAGE"}}
SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 12}


def text(content: str) -> dict:
    return {"type": "text", "text": content}


def user(*parts) -> dict:
    return {"role": "user", "content": parts[0] if isinstance(parts[0], str) else list(parts)}


def assistant(content: str) -> dict:
    return {"role": "assistant", "content": content}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
CHATS = {
    "in the middle": [user(text("Look at this: "), IMAGE, text("What is it?"))],
    "in front": [SYSTEM, user(IMAGE, text("What is it?"))],
    "behind": [SYSTEM, user(text("What is it?\n  "), IMAGE)],
    "later": [SYSTEM, user("Hi there!"), assistant("Hello!"), user(text("Look"), IMAGE)],
    "two": [SYSTEM, user(text("One"), IMAGE), assistant("A cat."), user(text("And"), IMAGE, IMAGE)],
    "with a uuid": [SYSTEM, user(text("Look closely, please"), {**IMAGE, "uuid": "x1"})],
    "without a type": [SYSTEM, user(text("Look closely, please"), {"image_url": "IMAGE"})],
    "a placeholder in the text": [SYSTEM, user(text("What is <|image_pad|> or <image>? "), IMAGE)],
    "a placeholder long before": [
        SYSTEM, user(f"What does {QWEN_IMAGE} mean?"), assistant("An image."), user(IMAGE)
    ],
    "text follows": [SYSTEM, user(IMAGE), assistant("red"), user("Are you sure? " * 50)],
    "of a tool": [
        SYSTEM,
        user("Find a cat."),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [text("found"), IMAGE]},
    ],
}  # fmt: skip


def write_model(directory: Path, model: dict) -> None:
    packed = (DATA / "tokenizers" / "phi-3.tokenizer.json.xz").read_bytes()
    tokenizer = json.loads(lzma.decompress(packed))
    first = 1 + max(
        *tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])
    )
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ids = {token: first + i for i, token in enumerate(model["tokens"])}
    tokenizer["added_tokens"] += [
        {"id": id, "content": token, "special": True, **flags} for token, id in ids.items()
    ]
    with lzma.open(DATA / "templates" / "chat_templates.jsonl.xz", "rt") as rows:
        templates = {row["id"]: row["chat_template"] for row in map(json.loads, rows)}
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **settings},
        "config.json": model["config"](ids, first + 64),
        "preprocessor_config.json": model["preprocessor"],
        "processor_config.json": model["processor"],
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    (directory / "chat_template.jinja").write_text(templates[model["template"]])


def with_image(messages: list, image: str) -> list:
    return json.loads(json.dumps(messages).replace('"IMAGE"', json.dumps(image)))


def ask(messages: list) -> dict:
    body = json.dumps({"model": "m", "messages": messages}).encode()
    url = f"http://127.0.0.1:{PORT}/v1/chat/completions/render"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def wait_until_up(server: subprocess.Popen) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health")
            return
        except OSError:
            time.sleep(1)
    raise SystemExit("vllm launch render has ended")


def record(name: str, flags: tuple, image: str) -> list:
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory), MODELS[name])
        where = ("--port", str(PORT), "--host", "127.0.0.1", "--served-model-name", "m")
        server = subprocess.Popen([VLLM, "launch", "render", directory, *where, *flags])
        try:
            wait_until_up(server)
            rows = []
            for chat, messages in CHATS.items():
                answer = ask(with_image(messages, image))
                places = answer["features"]["mm_placeholders"]["image"]
                first = min(place["offset"] for place in places)
                ids = answer["token_ids"][: first + 2]
                rows.append({"model": name, "flags": flags, "chat": chat, "messages": messages,
                             "first_media": first, "ids": ids})  # fmt: skip
            return rows
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    image = io.BytesIO()
    Image.new("RGB", (336, 336), (200, 30, 30)).save(image, "PNG")
    url = "data:image/png;base64," + base64.b64encode(image.getvalue()).decode()
    models = {n: {"template": m["template"], "tokens": m["tokens"]} for n, m in MODELS.items()}
    rows = [{"vllm": "0.32.0", "tokenizer": "phi-3", "models": models}]
    for name, flags in RUNS:
        rows += record(name, flags, url)
    path = HERE / "vllm_media.jsonl.gz"
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)


if __name__ == "__main__":
    main()
