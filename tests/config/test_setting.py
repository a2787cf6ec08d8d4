"""What the fields of the settings say of themselves."""

from __future__ import annotations

from inferway.config import (
    DiscoverySettings,
    EngineSettings,
    PeerSettings,
    RecordSettings,
    ServeSettings,
)
from inferway.config.setting import (
    DISCOVERY,
    ENGINES,
    PICKER_TLS,
    PICKING,
    SERVING,
    keys_below,
    without_once,
)

SETTINGS = dict(keys_below(ServeSettings))


def test_each_setting_says_in_sentences_what_it_means() -> None:
    for key, setting in SETTINGS.items():
        assert setting.text[0].isupper() or setting.text[0] == "`", key
        assert setting.text.endswith("."), key
        assert setting.more[-1:] in ("", "."), key


def test_the_flag_of_each_setting_is_in_a_group_that_a_command_shows() -> None:
    shown = {ENGINES, DISCOVERY, *SERVING, PICKING, PICKER_TLS}
    flags = [setting.flag for setting in SETTINGS.values() if setting.flag is not None]

    assert len({flag.names for flag in flags}) == len(flags)
    assert all(flag.group in shown for flag in flags)


def test_a_process_beside_the_hub_has_the_defaults_of_what_exists_once() -> None:
    settings = ServeSettings(
        engines=[EngineSettings(url="http://h:1")],
        discovery=DiscoverySettings(dns=["http://h:1"]),
        admin_port=1,
        publish="tcp://*:1",
        state_dir="/s",
        peers=PeerSettings(addresses=["h:1"]),
        records=RecordSettings(directory="/r", requests=5),
        port=2,
    )

    records = RecordSettings(directory="/r", requests=5)  # workers put aside what the hub writes
    assert without_once(settings) == ServeSettings(records=records, port=2)
