"""A hub id -> a local directory with the model's tokenizer and templates: no weights, no code."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

from inferway.errors import RenderError

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
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)

# A hub that does not answer within this time counts as unreachable; with imports and the look
# into the local cache the caller learns it within three seconds.
PROBE_SECONDS = 2.0


def fetch_model_files(
    model: str, *, revision: str | None, token: str | None, download_dir: str | None
) -> Path:
    """The snapshot directory: from the hub, or from the local cache if it cannot be reached.

    Raises RenderError if neither has the model.
    """
    # Half a second of import that `import inferway` and local models need not pay.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    offline = constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT)
    try:
        snapshot = snapshot_download(
            model,
            revision=revision,
            token=token,
            cache_dir=download_dir,
            allow_patterns=list(FILE_PATTERNS),
            local_files_only=offline,
            etag_timeout=PROBE_SECONDS,
        )
    except HFValidationError as e:
        raise _unavailable(model, "it is neither a directory here nor a hub id") from e
    except LocalEntryNotFoundError as e:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise _unavailable(model, f"{why} ({constants.ENDPOINT}) and it is not in the cache") from e
    # OSError covers requests' and httpx-era HfHubHTTPError: gated, unknown, wrong token.
    except OSError as e:
        raise _unavailable(model, f"the hub refuses it: {type(e).__name__}") from e
    return Path(snapshot)


def _unavailable(model: str, why: str) -> RenderError:
    return RenderError(
        f"model {model!r}: no tokenizer: {why}; give its directory with --tokenizer MODEL=PATH",
        reason="no_tokenizer",
    )


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
