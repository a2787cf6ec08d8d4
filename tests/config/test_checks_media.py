"""Pictures are fetched from hosts that are named, and from a directory that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferway.config import MediaSettings, load_settings
from inferway.errors import ConfigError

ENGINE = {"engines": [{"url": "http://127.0.0.1:8000"}]}


@pytest.mark.parametrize("host", ["images.example.org", "minio", "IMAGES.example.org", "1.1.1.1"])
def test_host_is_taken_by_its_name(host: str, tmp_path: Path) -> None:
    media = MediaSettings(fetch_domains=[host], local_path=str(tmp_path))

    assert load_settings(None, {**ENGINE, "media": media}).media == media


@pytest.mark.parametrize(
    "host",
    ["", "*", "*.example.org", "https://example.org", "example.org:443", "a/b", "a.", "[::1]"],
)
def test_anything_else_than_the_name_of_a_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"--media-fetch-domain\): .*: expected the name of a"):
        load_settings(None, {**ENGINE, "media": MediaSettings(fetch_domains=[host])})


def test_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    media = MediaSettings(local_path=str(tmp_path / "none"))

    with pytest.raises(ConfigError, match=r"--media-local-path\): '.*none': expected a directory"):
        load_settings(None, {**ENGINE, "media": media})
