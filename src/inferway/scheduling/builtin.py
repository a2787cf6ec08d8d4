"""Every plugin type of core. docs/plugins.md has them, too; a test compares."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.scheduling import admitters, pickers, session_admission, session_id, sessions
from inferway.scheduling.expected_ttft import plugin as expected_ttft
from inferway.scheduling.flow_control import policies, usage_limits
from inferway.scheduling.registry import PluginType
from inferway.scheduling.scorers import load, prefix_match

_TYPES = (
    sessions.FILTER,
    # scorers
    *load.TYPES,
    prefix_match.TYPE,
    sessions.SCORER,
    expected_ttft.TYPE,
    *pickers.TYPES,
    # producers
    *session_id.TYPES,
    *admitters.TYPES,
    session_admission.TYPE,
    # flow control
    *policies.TYPES,
    *usage_limits.TYPES,
)

BUILTIN: Mapping[str, PluginType] = {kind.name: kind for kind in _TYPES}
