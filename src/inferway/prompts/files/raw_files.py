"""Places of a model's files, and the bytes of those that decide over its prompts, bounded: no
weights, no code. A hub id -> a local directory -> the files' contents.

Nobody vouches for such files: an engine names the directory, or a hub has them. So nothing is
parsed here, no more is read than the largest real files have, and what is read lies in the model's
own directory: a link out of it would show any file of this machine to who may ask for prompts.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

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


def template_source(given: str, templates: Mapping[str, str]) -> str:
    """Return the template that an engine's --chat-template names: Jinja itself, if it has braces,
    else one of the model's `templates` by its name, else a file. Raises RenderError."""
    if is_jinja(given):
        return given
    if given in templates:
        return templates[given]
    content = _read(Path(given).expanduser(), MAX_TEMPLATE_BYTES, None)
    if content is None:
        raise RenderError(
            f"no such file, and the model's own templates are {sorted(templates)}",
            reason=Reason.BAD_TEMPLATE,
        )
    return as_text(content, given, Reason.BAD_TEMPLATE)


def is_jinja(given: str) -> bool:
    return any(sign in given for sign in "{}\n")


def as_text(content: bytes, path: str, reason: Reason = Reason.BAD_TOKENIZER) -> str:
    """Return a file's text with line ends as a file has them that is opened as text, which is how
    engines read it. Raises RenderError."""
    try:
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as e:
        raise RenderError(f"{path}: it is not UTF-8 text", reason=reason) from e


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
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None  # ValueError: the name has a null character
    except RuntimeError as e:
        raise _unusable(path, "it is a link to itself") from e
    except OSError as e:
        raise _unusable(path, f"it cannot be read: {e.strerror}") from e
    if len(content) > most:
        raise _unusable(path, f"it has more than {most} bytes")
    return content


def _unusable(path: Path, why: str) -> RenderError:
    return RenderError(f"{path}: {why}", reason=Reason.BAD_TOKENIZER)


# Everything that decides over prompts. Python files are never fetched, let alone run.
FILE_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "params.json",
    "tekken.json",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)

# A hub that does not answer within this time counts as unreachable; with imports and the look
# into the local cache the caller learns it within three seconds.
PROBE_SECONDS = 2.0


def file_versions(model: str) -> tuple[tuple[str, int, int, int], ...]:
    """Return a value that changes with each file that decides over a local model's prompts; it is
    empty for a hub id, and for what is no path. Raises RenderError for one that cannot be read."""
    try:
        path = Path(model).expanduser()
        directory = path if path.is_dir() else path.parent
        found = {path, *(file for pattern in FILE_PATTERNS for file in directory.glob(pattern))}
    except (OSError, RuntimeError) as e:  # too long a name; no such user; no right to look
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise RenderError(f"{model}: it cannot be read: {why}", reason=Reason.NO_TOKENIZER) from e
    versions = []
    for file in sorted(found) if path.exists() else ():
        with contextlib.suppress(OSError):
            seen = file.stat()
            if not file.is_dir():
                versions.append((str(file), seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return tuple(versions)


def fetch_model_files(
    model: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    download_dir: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """The snapshot directory: from the hub (`HF_ENDPOINT` unless `endpoint` is given), or from
    the local cache if the hub cannot be reached.

    Raises RenderError if neither has the model.
    """
    # Half a second of import that `import inferway` and local models need not pay. HTTPError is
    # that of the client underneath (requests, httpx, httpx2): its timeouts come out as they are.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import DryRunError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import HTTPError as ConnectionFailedError  # type: ignore[attr-defined]

    url = endpoint or constants.ENDPOINT
    offline = constants.HF_HUB_OFFLINE or not _answers(url)
    try:
        download: Callable[..., Any] = partial(
            snapshot_download,
            model,
            revision=revision,
            token=token,
            cache_dir=download_dir,
            allow_patterns=list(FILE_PATTERNS),
            endpoint=url,
            etag_timeout=PROBE_SECONDS,
        )
        if not offline:
            _check_access(model, revision, token, url)
            with contextlib.suppress(DryRunError):  # the hub has gone away; the cache may have it
                _check_sizes(model, download(dry_run=True))
        snapshot = download(local_files_only=offline)
    except HFValidationError as e:
        raise _unavailable(model, "it is neither a directory here nor a hub id") from e
    except LocalEntryNotFoundError as e:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise _unavailable(model, f"{why} ({url}) and it is not in the cache") from e
    # Unknown, gated, wrong token, broken connection.
    except (OSError, ConnectionFailedError) as e:
        raise _unavailable(model, f"the hub at {url} refuses it: {type(e).__name__}") from e
    return Path(snapshot)


def _check_access(model: str, revision: str | None, token: str | None, url: str) -> None:
    """Raises the hub's error if this caller may not read the model. `snapshot_download` alone
    would answer a refused caller from the cache that another one has filled."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    config = hf_hub_url(model, "config.json", revision=revision, endpoint=url)
    with contextlib.suppress(RemoteEntryNotFoundError):  # readable, but has no such file
        get_hf_file_metadata(config, token=token, timeout=PROBE_SECONDS, endpoint=url)


class _Sized(Protocol):
    """A file as the hub tells of it before it is fetched."""

    filename: str
    file_size: int | None


def _check_sizes(model: str, files: Sequence[_Sized]) -> None:
    """Raises RenderError for files that no model is known to need."""
    for file in files:
        if (file.file_size or 0) > MAX_TOKENIZER_BYTES:
            raise _unavailable(
                model,
                f"{file.filename} has {file.file_size} bytes at the hub, fetched are"
                f" {MAX_TOKENIZER_BYTES} at most",
            )
    together = sum(file.file_size or 0 for file in files)
    if together > MAX_BYTES:
        raise _unavailable(
            model,
            f"its {len(files)} files have {together} bytes at the hub, fetched are {MAX_BYTES}"
            " at most",
        )


def _unavailable(model: str, why: str) -> RenderError:
    return RenderError(f"model {model!r}: no tokenizer: {why}", reason=Reason.NO_TOKENIZER)


def _answers(endpoint: str) -> bool:
    """Does anything answer at `endpoint` within PROBE_SECONDS? Any HTTP status will do."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
        except urllib.error.HTTPError:
            answered.set()
        except (OSError, ValueError):
            return
        answered.set()

    # In a thread, because resolving a name may hang longer than any socket timeout.
    asking = threading.Thread(target=ask, name="hub-probe", daemon=True)
    asking.start()
    asking.join(PROBE_SECONDS)
    return answered.is_set()
