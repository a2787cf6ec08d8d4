"""What the doctor sees of a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.engines.engine import RealEngine

from inferway.config import EngineSettings
from inferway.doctor.engines import ask_engines


def test_an_engine_with_a_tool_parser_is_seen_to_take_tools(engines: Sequence[RealEngine]) -> None:
    (found,) = asyncio.run(ask_engines([EngineSettings(url=engines[0].url)]))

    assert found.error is None
    assert found.takes_tools is True
