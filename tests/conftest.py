"""What all tests share."""

from __future__ import annotations

import os

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
