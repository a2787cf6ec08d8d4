"""A hub id -> a local directory with the model's tokenizer and templates: no weights, no code."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from inferway.errors import RenderError
from inferway.model import Reason
from inferway.prompts.files.raw_files import MAX_BYTES, MAX_TOKENIZER_BYTES

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
    """Something else when a file that decides over the prompts of a local model has changed;
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
