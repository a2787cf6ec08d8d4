"""A hub id -> a local directory with the model's tokenizer and templates: no weights, no code."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from pathlib import Path

from inferway.errors import RenderError
from inferway.model import Reason

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
    empty for a hub id."""
    path = Path(model).expanduser()
    directory = path if path.is_dir() else path.parent
    found = {path, *(file for pattern in FILE_PATTERNS for file in directory.glob(pattern))}
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
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.errors import HTTPError as ConnectionFailedError  # type: ignore[attr-defined]

    url = endpoint or constants.ENDPOINT
    offline = constants.HF_HUB_OFFLINE or not _answers(url)
    try:
        if not offline:
            _check_access(model, revision, token, url)
        snapshot = snapshot_download(
            model,
            revision=revision,
            token=token,
            cache_dir=download_dir,
            allow_patterns=list(FILE_PATTERNS),
            local_files_only=offline,
            endpoint=url,
            etag_timeout=PROBE_SECONDS,
        )
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
