"""A model's directory -> the bytes of the files that decide over its prompts, bounded.

Nobody vouches for such files: an engine names the directory, or a hub has them. So nothing is
parsed here, no more is read than the largest real files have, and what is read lies in the model's
own directory: a link out of it would show any file of this machine to who may ask for prompts.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from inferway.errors import RenderError
from inferway.model import Reason

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")

# The largest known: 33 MB (Gemma 3) and a few MB; the largest of 347 templates has 19 kB.
MAX_TOKENIZER_BYTES, MAX_OTHER_BYTES = 64 << 20, 16 << 20
MAX_TEMPLATE_BYTES = 1 << 20
MAX_TEMPLATES = 64
# Of all files of a model together: the largest known have 60 MB.
MAX_BYTES = 2 * MAX_TOKENIZER_BYTES

_OTHERS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "chat_template.json",
    *PROCESSOR_FILES,
    "video_preprocessor_config.json",
)
_MORE_TEMPLATES = "additional_chat_templates"
_OF_MISTRAL = ("tekken.json", "tokenizer.model.v*")


class RawFiles(msgspec.Struct, frozen=True):
    """`files`: by name; `templates` those of .jinja files, by what they are called; `path` and
    `directory` are for messages."""

    path: str  # of tokenizer.json
    directory: str
    files: dict[str, bytes]
    templates: dict[str, bytes]
    has_template: bool  # one of its own for all chats, chat_template.jinja
    is_of_mistral: bool  # has files of Mistral's own tokenizers

    @property
    def num_bytes(self) -> int:
        return sum(map(len, (*self.files.values(), *self.templates.values())))


def read_raw_files(path: Path, *, follows_links: bool = False) -> RawFiles:
    """`path` is a model's directory, or its tokenizer.json. `follows_links`: wherever they lead,
    because the operator has named the directory. Raises RenderError."""
    named = path.is_file()
    directory = path.parent if named else path
    tokenizer = path if named else directory / TOKENIZER
    within = None if follows_links else _home(directory)
    # what was named itself may lie anywhere: it could have been named there
    content = _read(tokenizer, MAX_TOKENIZER_BYTES, None if named else within)
    if content is None:
        raise RenderError(
            f"{directory}: no tokenizer.json; other tokenizer formats are not read",
            reason=Reason.NO_TOKENIZER,
        )
    files = {TOKENIZER: content}
    for name in _OTHERS:
        found = _read(directory / name, MAX_OTHER_BYTES, within)
        if found is not None:
            files[name] = found
    templates = {}
    more = sorted(directory.glob(f"{_MORE_TEMPLATES}/*.jinja"))
    if len(more) > MAX_TEMPLATES:
        raise _unusable(
            directory / _MORE_TEMPLATES,
            f"it has {len(more)} templates, allowed are {MAX_TEMPLATES}",
        )
    for name, file in [("default", directory / TEMPLATE), *((file.stem, file) for file in more)]:
        found = _read(file, MAX_TEMPLATE_BYTES, within)
        if found is not None:
            templates[name] = found
    is_of_mistral = any(any(directory.glob(pattern)) for pattern in _OF_MISTRAL)
    raw = RawFiles(
        path=str(tokenizer),
        directory=str(directory),
        files=files,
        templates=templates,
        has_template=(directory / TEMPLATE).is_file(),
        is_of_mistral=is_of_mistral,
    )
    if raw.num_bytes > MAX_BYTES:
        raise _unusable(
            directory, f"its files have {raw.num_bytes} bytes together, allowed are {MAX_BYTES}"
        )
    return raw


def _home(directory: Path) -> Path:
    """What a model's files may lie in: of a hub's cache that is the model's part of it, where
    snapshots are links."""
    real = directory.resolve()
    return real.parents[1] if real.parent.name == "snapshots" else real


def read_template(path: Path) -> str:
    """Return the text of a template file that the operator has named. Raises RenderError."""
    content = _read(path, MAX_TEMPLATE_BYTES, None)
    if content is None:
        raise RenderError(f"{path}: no such file", reason=Reason.BAD_TEMPLATE)
    try:
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as e:
        raise RenderError(f"{path}: it is not UTF-8 text", reason=Reason.BAD_TEMPLATE) from e


def _read(path: Path, most: int, within: Path | None) -> bytes | None:
    """None: there is no such file."""
    try:
        real = path.resolve(strict=True)
        if within is not None and not real.is_relative_to(within):
            raise _unusable(
                path,
                f"it is a link that leads out of {str(within)!r}; put the file itself there, or "
                "name the directory with --tokenizer NAME=PATH",
            )
        # not blocking: a pipe would wait for a writer for ever
        with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            content = file.read(most + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except RuntimeError as e:
        raise _unusable(path, "it is a link to itself") from e
    except OSError as e:
        raise _unusable(path, f"it cannot be read: {e.strerror}") from e
    if len(content) > most:
        raise _unusable(path, f"it has more than {most} bytes")
    return content


def _unusable(path: Path, why: str) -> RenderError:
    return RenderError(f"{path}: {why}", reason=Reason.BAD_TOKENIZER)
