"""YAML file and flags -> frozen settings, or a ConfigError: place, value, what is allowed.

settings   the structs: every key with its type, bounds and default
reading    a file, and flags over it      -> settings
converted  what a file says               -> a struct, or what is wrong with it
checks     what goes together, and texts of a form
shown      a setting                      -> what logs and errors may have of it
"""

from inferway.config.checks import ALLOWED_PATH, check_engines, peers_port
from inferway.config.converted import converted
from inferway.config.engine_settings import (
    UNIX,
    DiscoverySettings,
    EngineSettings,
    KubernetesSettings,
    ModelSettings,
    engine_address,
    unix_path,
)
from inferway.config.part_settings import (
    EjectionSettings,
    FlowSettings,
    IndexSettings,
    KvTransferSettings,
    LimitSettings,
    ModelRewrite,
    PeerSettings,
    PickerSettings,
    ProbeSettings,
    RecordSettings,
    RetrySettings,
    RewriteTarget,
    SloSettings,
    StructuredSettings,
    TimeoutSettings,
)
from inferway.config.reading import load_settings, parse_engine, parse_yaml, read_yaml
from inferway.config.settings import Policy, ServeSettings
from inferway.config.shown import without_password

__all__ = [
    "ALLOWED_PATH",
    "UNIX",
    "DiscoverySettings",
    "EjectionSettings",
    "EngineSettings",
    "FlowSettings",
    "IndexSettings",
    "KubernetesSettings",
    "KvTransferSettings",
    "LimitSettings",
    "ModelRewrite",
    "ModelSettings",
    "PeerSettings",
    "PickerSettings",
    "Policy",
    "ProbeSettings",
    "RecordSettings",
    "RetrySettings",
    "RewriteTarget",
    "ServeSettings",
    "SloSettings",
    "StructuredSettings",
    "TimeoutSettings",
    "check_engines",
    "converted",
    "engine_address",
    "load_settings",
    "parse_engine",
    "parse_yaml",
    "peers_port",
    "read_yaml",
    "unix_path",
    "without_password",
]
