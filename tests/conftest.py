"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# CI machines are slow and shared: a property is judged by what it finds, not by its seconds.
settings.register_profile("inferway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("inferway")
