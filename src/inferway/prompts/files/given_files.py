"""Checks of tokenizers and chat templates in the settings, made before any port is opened.

A value that can never become a tokenizer or a template is refused. A hub id is not fetched here:
that is done when an engine serves the model. A tokenizer is not loaded either, only read: loading
takes seconds, and is done once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferway.config import ModelSettings
from inferway.errors import ConfigError, RenderError
from inferway.model import Reason
from inferway.prompts.files.raw_files import is_jinja, template_source

if TYPE_CHECKING:
    from inferway.prompts.files.model_files import ModelFiles

_PATH_ENDS = (".json", ".jinja", ".gguf")
_HUB_ID = re.compile(r"\w[\w.-]{0,95}(?:/\w[\w.-]{0,95})?", re.ASCII)

_TOKENIZER = "expected a directory with a tokenizer.json, that file itself, or a hub id (ORG/NAME)"
_TEMPLATE = "expected a file, Jinja itself, or the name of one of the model's own templates"
_CURE = "correct the value, or leave it out: then the engine's own is taken"


def check_given(models: Mapping[str, ModelSettings]) -> None:
    """Check the tokenizers and templates that the settings name. Raises ConfigError for the first
    one that cannot be used."""
    for model, given in models.items():
        files = None
        tokenizer, template = given.tokenizer, given.chat_template
        try:
            if tokenizer is not None:
                value, key, expected = tokenizer, "tokenizer (--tokenizer)", _TOKENIZER
                files = _read_tokenizer(tokenizer)
            if template is not None:
                value, key, expected = template, "chat_template (--chat-template)", _TEMPLATE
                _check_template(template, files)
        except RenderError as e:
            shown = value if len(value) <= 100 else value[:100] + "…"  # Jinja is long
            raise ConfigError(f"models: {model}: {key} {shown!r}: {e}; {expected}; {_CURE}") from e


class _TokenizerJson(msgspec.Struct):
    """As much of a tokenizer.json as tells it from other JSON."""

    model: dict[str, msgspec.Raw]


def _read_tokenizer(given: str) -> ModelFiles | None:
    """None: a hub id. Raises RenderError."""
    path = Path(given).expanduser()
    if not _exists(path):
        if _HUB_ID.fullmatch(given) is None or given.endswith(_PATH_ENDS):
            why = "no such file or directory, and it cannot be a hub id"
            raise RenderError(why, reason=Reason.NO_TOKENIZER)
        return None
    # Tokenizers' libraries are 5 MiB that a gateway without a tokenizer need not have.
    from inferway.prompts.files.model_files import read_model_files

    files = read_model_files(path, follows_links=True)
    try:
        msgspec.json.decode(files.tokenizer.tokenizer_json, type=_TokenizerJson)
    except (msgspec.MsgspecError, RecursionError) as e:
        why = f"it is not a tokenizer.json: {e}"
        raise RenderError(why, reason=Reason.BAD_TOKENIZER) from e
    return files


def _check_template(given: str, files: ModelFiles | None) -> None:
    """Raises RenderError. `files`: the model's, if they are here; otherwise a template's name
    cannot be checked yet."""
    from inferway.prompts.chat.chat_template import ChatTemplate

    is_name = "/" not in given and not given.endswith(_PATH_ENDS) and not is_jinja(given)
    if files is not None or not is_name or _exists(Path(given).expanduser()):
        ChatTemplate(template_source(given, {} if files is None else files.templates))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long, or has a null character
        return False
