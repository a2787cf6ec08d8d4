"""YAML file and flags -> frozen settings, or a ConfigError: place, value, what is allowed.

settings   every key with its type, bounds, default, flag and meaning; engine_settings and
           part_settings have the structs below it
setting    what such a field says of itself
reading    a file, and flags over it      -> settings
converted  what a file says               -> a struct, or what is wrong with it
checks     what goes together, and texts of a form
"""

from inferway.config.checks import ALLOWED_PATH, check_engines, peers_port
from inferway.config.converted import converted, without_password
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
    MediaSettings,
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
    "MediaSettings",
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
