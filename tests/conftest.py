"""What all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# CI machines are slow and shared: a property is judged by what it finds, not by its seconds.
# There the examples are always the same, for what lands must not hang on a draw.
settings.register_profile(
    "inferway",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("inferway")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its whole process. The tests that come
    after it in that process must not see its level and its handlers."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
