"""The settings of records."""

from __future__ import annotations

import pytest

from inferway.config import EngineSettings, RecordSettings, ServeSettings
from inferway.config.checks import check
from inferway.errors import ConfigError


def settings(**records: object) -> ServeSettings:
    made = RecordSettings(**records)  # type: ignore[arg-type]
    return ServeSettings(engines=[EngineSettings(url="http://e")], records=made)


def test_files_need_records_in_memory() -> None:
    with pytest.raises(ConfigError, match="directory and requests: 0"):
        check(settings(directory="records", requests=0))


def test_either_alone_is_fine() -> None:
    check(settings(requests=0))
    check(settings(directory="records"))
