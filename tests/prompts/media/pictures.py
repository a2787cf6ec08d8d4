"""Pictures, and a model folder whose chats may have them, for the tests of this folder."""

from __future__ import annotations

import base64
import io
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import tokenizers
from PIL import Image

QWEN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}"
    "{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in c %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def data_url(data: bytes, kind: str = "image/png") -> str:
    """Return the URL that has these bytes in it."""
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def png(width: int, height: int, colour: str = "red") -> str:
    """Return the data URL of a picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return data_url(out.getvalue())


def png_header(width: int, height: int) -> str:
    """Return the data URL of a PNG of this size that has no pixels."""
    chunks = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IEND", b"")
    written = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return data_url(b"\x89PNG\r\n\x1a\n" + b"".join(written))


def picture(url: str | None, **members: Any) -> dict[str, Any]:
    """Return a part with a picture."""
    return {"type": "image_url", "image_url": None if url is None else {"url": url}, **members}


def text(content: str) -> dict[str, Any]:
    """Return a part with a text."""
    return {"type": "text", "text": content}


def vision_model(smollm2: Path, folder: Path, template: str = QWEN_TEMPLATE) -> Path:
    """Write a Qwen2-VL without weights, with SmolLM2's tokenizer, into a new folder; return it."""
    shutil.copytree(smollm2, folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    (folder / "config.json").write_text(json.dumps(config))
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 3136,
        "max_pixels": 1003520,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder
