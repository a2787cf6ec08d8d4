from __future__ import annotations

import socket
import tomllib
from pathlib import Path

from inferway.doctor.machine import (
    core_dependencies,
    look_at_cache,
    look_at_packages,
    look_at_port,
)

ROOT = Path(__file__).parents[2]


def test_core_dependencies_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert len(core_dependencies()) == len(project["dependencies"])
    assert "pyzmq" in core_dependencies()


def test_every_core_dependency_imports_here() -> None:
    found = look_at_packages(core_dependencies())

    assert found.errors == {}
    assert list(found.versions) == core_dependencies()


def test_a_missing_package_is_an_error_by_name() -> None:
    found = look_at_packages(["no-such-package"])

    assert found.errors == {"no-such-package": "No module named 'no_such_package'"}


def test_a_cache_directory_need_not_exist_yet(tmp_path: Path) -> None:
    found = look_at_cache(tmp_path / "not" / "yet")

    assert found.write_error is None
    assert not (tmp_path / "not").exists()


def test_a_cache_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    assert look_at_cache(file / "cache").write_error == "Not a directory"


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])

        assert look_at_port({"HTTP_PORT": port}).error == "in use by another program"


def test_a_port_that_is_none_is_said() -> None:
    assert "not a port number" in (look_at_port({"HTTP_PORT": "http"}).error or "")


def test_without_http_port_it_is_8080() -> None:
    assert look_at_port({}).wanted == "8080"
