"""What settings say of models' tokenizers and chat templates, checked before anything listens.

A value that can never become a tokenizer or a template is refused. A hub id is not fetched here:
that is done when an engine serves the model. A tokenizer is not loaded either, only read: loading
takes seconds, and is done once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferway.config import ModelSettings
from inferway.errors import ConfigError, RenderError
from inferway.prompts.files.raw_files import read_template

if TYPE_CHECKING:
    from inferway.prompts.files.model_files import ModelFiles

_PATH_STARTS = ("/", ".", "~")
_PATH_ENDS = (".json", ".jinja", ".gguf")

_TOKENIZER = "expected a directory with a tokenizer.json, that file itself, or a hub id (ORG/NAME)"
_TEMPLATE = "expected a file, Jinja itself, or the name of one of the model's own templates"
_CURE = "correct the value, or leave it out: then the engine's own is taken"


def check_given(models: Mapping[str, ModelSettings]) -> None:
    """Check the tokenizers and templates that the settings name. Raises ConfigError for the first
    one that cannot be used."""
    for model, given in models.items():
        files = None
        if given.tokenizer is not None:
            try:
                files = _read_tokenizer(given.tokenizer)
            except _UnusableError as e:
                place = f"models: {model}: tokenizer (--tokenizer) {given.tokenizer!r}"
                raise ConfigError(f"{place}: {e}; {_TOKENIZER}; {_CURE}") from e
        if given.chat_template is not None:
            try:
                _check_template(given.chat_template, files)
            except _UnusableError as e:
                place = f"models: {model}: chat_template (--chat-template) {_shown(given)!r}"
                raise ConfigError(f"{place}: {e}; {_TEMPLATE}; {_CURE}") from e


class _UnusableError(Exception):
    """Says why a value cannot be used."""


class _TokenizerJson(msgspec.Struct):
    """As much of a tokenizer.json as tells it from other JSON."""

    model: dict[str, msgspec.Raw]


def _read_tokenizer(given: str) -> ModelFiles | None:
    """None: a hub id. Raises _UnusableError."""
    path = Path(given).expanduser()
    if not _exists(path):
        _check_hub_id(given)
        return None
    # Tokenizers' libraries are 5 MiB that a gateway without a tokenizer need not have.
    from inferway.prompts.files.model_files import read_model_files

    try:
        files = read_model_files(path, follows_links=True)
        msgspec.json.decode(files.tokenizer.tokenizer_json, type=_TokenizerJson)
    except RenderError as e:
        raise _UnusableError(str(e)) from e
    except (msgspec.MsgspecError, RecursionError) as e:
        raise _UnusableError(f"it is not a tokenizer.json: {e}") from e
    return files


def _check_hub_id(given: str) -> None:
    """Raises _UnusableError."""
    if given.startswith(_PATH_STARTS) or given.endswith(_PATH_ENDS) or given.count("/") > 1:
        raise _UnusableError("no such file or directory")
    # Half a second of import that only who gives a hub id pays, and would pay later.
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(given)
    except HFValidationError as e:
        raise _UnusableError("no such file or directory, and it cannot be a hub id") from e


def _check_template(given: str, files: ModelFiles | None) -> None:
    """Raises _UnusableError. `files`: the model's, if they are here; otherwise a template's name
    cannot be checked yet."""
    from inferway.prompts.chat.chat_template import ChatTemplate

    source = _template_source(given, files)
    if source is not None:
        try:
            ChatTemplate(source)
        except RenderError as e:
            raise _UnusableError(str(e)) from e


def _template_source(given: str, files: ModelFiles | None) -> str | None:
    """None: the name of a template that only the model's files can tell."""
    names: Mapping[str, Any] = {} if files is None else files.templates
    if any(sign in given for sign in "{}\n"):
        return given
    if given in names:
        return str(names[given])
    path = Path(given).expanduser()
    if _exists(path):
        try:
            return read_template(path)
        except RenderError as e:
            raise _UnusableError(str(e)) from e
    if "/" in given or given.startswith(_PATH_STARTS) or given.endswith(_PATH_ENDS):
        raise _UnusableError("no such file")
    if files is not None:
        raise _UnusableError(f"no such file, and the model's own templates are {sorted(names)}")
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long, or has a null character
        return False


def _shown(given: ModelSettings) -> str:
    """A template that is given as Jinja is long."""
    text = given.chat_template or ""
    return text if len(text) <= 100 else text[:100] + "…"
