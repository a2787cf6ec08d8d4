"""All plugin types that a configuration may name: core's and llm-d's."""

from __future__ import annotations

from inferway.scheduling.load import KnownTypes

TYPES = KnownTypes()
