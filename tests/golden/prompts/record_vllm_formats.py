"""Writes vllm_formats.json: `/path/to/vllm-venv/bin/python record_vllm_formats.py`.

The form of content (`--chat-template-content-format auto`) that the installed vLLM detects for
each template of the shared data, by id.
"""
# mypy: ignore-errors

import json

from record_vllm_chats import HERE, TEMPLATES, rows
from vllm.renderers import hf

FORMATS = HERE / "vllm_formats.json"


def main() -> None:
    detect = hf._detect_content_format.__wrapped__
    found = {row["id"]: detect(row["chat_template"], default="string") for row in rows(TEMPLATES)}
    FORMATS.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
