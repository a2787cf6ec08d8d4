"""Asks the hub once, and gives up in time even where names do not resolve."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from inferway.doctor.facts import Hub

HUB_SECONDS = 3.0
DEFAULT_HUB = "https://huggingface.co"

# (url, headers, seconds) -> status of the answer. Raises OSError or ValueError.
GetStatus = Callable[[str, Mapping[str, str], float], int]


def get_status(url: str, headers: Mapping[str, str], seconds: float) -> int:
    """Through the proxies of the environment, as the hub's own client goes."""
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as e:
        e.close()
        return e.code


def ask_hub(
    environment: Mapping[str, str], seconds: float = HUB_SECONDS, get: GetStatus = get_status
) -> Hub:
    """Send one request to the hub: who the token belongs to, if there is a token, else any page;
    the answer itself shows that the hub is there."""
    url = (environment.get("HF_ENDPOINT") or DEFAULT_HUB).rstrip("/")
    token = environment.get("HF_TOKEN")
    if environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Hub(url, offline=True)
    path = "/api/whoami-v2" if token else "/"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    statuses: list[int] = []
    errors: list[str] = []

    def ask() -> None:
        try:
            statuses.append(get(url + path, headers, seconds))
        except urllib.error.URLError as e:
            errors.append(str(e.reason))
        except (OSError, ValueError) as e:
            errors.append(str(e))

    # In a thread that nobody waits for at the end: looking a name up may hang for half a
    # minute where a name server is silent, as on a machine that is offline.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    if statuses:
        return Hub(url, has_token=bool(token), status=statuses[0])
    error = errors[0] if errors else f"no answer in {seconds:g} s"
    return Hub(url, has_token=bool(token), error=error)
