"""Settings -> how endpoints are chosen; types that other packages bring."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scheduling.test_profile import REQUEST, table

from inferway.errors import ConfigError
from inferway.scheduling.load import known_types, load_scheduling

MODULE = """
import numpy as np
from inferway.scheduling.registry import PluginType

class LastRow:
    def score(self, request, candidates):
        size = len(candidates.endpoints)
        return np.where(np.arange(size) == size - 1, 1000.0, 0.0)

TYPE = PluginType("last-row", "", lambda parameters, building: LastRow())
TAKEN = PluginType("queue-scorer", "", lambda parameters, building: LastRow())
NONE = 3
"""


def package(
    monkeypatch: pytest.MonkeyPatch, directory: Path, value: str = "somebodys_plugin:TYPE"
) -> None:
    """Somebody's installed package with a plugin type."""
    (directory / "somebodys_plugin.py").write_text(MODULE)
    info = directory / "somebodys_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[inferway.plugins]\nlast-row = {value}\n")
    monkeypatch.syspath_prepend(str(directory))


def test_an_installed_package_brings_a_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(monkeypatch, tmp_path)

    scheduling = load_scheduling({"plugins": [{"type": "last-row"}, {"type": "queue-scorer"}]})

    chosen = scheduling.chooser.choose(REQUEST, table(size=3)).targets
    assert chosen[0].endpoint.engine == "e2"
    assert chosen[0].score <= 2.0  # what it says beyond 1 counts as 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("somebodys_plugin:NONE", "is a int, not a PluginType"),
        ("somebodys_plugin:TAKEN", "plugin type 'queue-scorer' is there already"),
        ("somebodys_plugin:GONE", "somebodys_plugin:GONE cannot be loaded"),
    ],
)
def test_a_package_that_brings_something_else_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, says: str
) -> None:
    package(monkeypatch, tmp_path, value)

    with pytest.raises(ConfigError, match="entry point 'last-row' of somebodys-plugin") as caught:
        known_types()

    assert says in str(caught.value)


def test_a_file_is_read_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "epp.yaml"
    path.write_text("kind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n")

    targets = load_scheduling(str(path)).chooser.choose(REQUEST, table(size=2)).targets

    assert len(targets) == 2
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read"):
        load_scheduling(str(tmp_path / "gone.yaml"))
