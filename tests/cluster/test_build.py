"""How the messages of peers travel, as the settings say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferway.cluster.bus.replicas import has_peers
from inferway.config import PeerSettings, ServeSettings


@pytest.mark.parametrize(
    ("peers", "are_there"),
    [
        (PeerSettings(), False),
        (PeerSettings(addresses=["a:7400"]), True),
        (PeerSettings(redis="redis://r"), True),
    ],
)
def test_a_gateway_has_peers_by_their_addresses_or_by_a_redis(
    peers: PeerSettings, are_there: bool
) -> None:
    assert has_peers(ServeSettings(engines=[], peers=peers)) is are_there


def test_without_redis_py_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None; sys.modules['redis.asyncio'] = None\n"
        "from inferway.config import PeerSettings, ServeSettings\n"
        "from inferway.errors import ConfigError\n"
        "from inferway.cluster.bus.replicas import transport_of\n"
        "transport_of(ServeSettings(engines=[], peers=PeerSettings(addresses=['a:7400'])))\n"
        "try: transport_of(ServeSettings(engines=[], peers=PeerSettings(redis='redis://r')))\n"
        "except ConfigError as e: print(e)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "peers: redis needs redis-py, which is not installed: pip install 'inferway[redis]'\n"
    )
