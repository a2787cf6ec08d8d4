"""The two commands on a fresh machine: interpreter detection, installing, Ctrl-C.

Interpreters are small shell scripts on a PATH of their own; nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What the probe of detect_python.sh prints: version, then the modules that are missing.
SOUND = "echo 3.12.1"

# Behaves as `python -m venv` and `python -m pip` do, as far as install.sh can see.
INSTALLS = """
case "$*" in
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        echo "#!$(pwd -P)/$3/bin/python" >"$3/bin/pip" ;;
    "-m pip install"*)
        echo "pip: $*" >>pip-calls
        [ ! -e pip-fails ] || { echo "no matching distribution"; exit 1; } ;;
    *) echo 3.12.1 ;;
esac
"""


def put_interpreter(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def outside_make() -> dict[str, str]:
    """The environment without what a `make test` around us put there."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "VENV", "ARGS", "HTTP_PORT")
    return {name: value for name, value in os.environ.items() if name not in ours}


def run_make(directory: Path, *arguments: str) -> str:
    """What `make` prints, on both outputs."""
    return subprocess.run(
        ["make", *arguments],
        cwd=directory,
        env=outside_make(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    ).stdout


Detect = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def detect(tmp_path: Path) -> Detect:
    """Runs detect_python.sh with nothing but `tmp_path` on PATH."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(ROOT / "scripts" / "detect_python.sh"), *arguments]
        env = {"PATH": str(tmp_path), **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run


def test_python3_is_taken_if_it_is_new_enough(tmp_path: Path, detect: Detect) -> None:
    python = put_interpreter(tmp_path / "python3", SOUND)
    put_interpreter(tmp_path / "python3.13", "echo 3.13.0")

    assert detect("--path").stdout == f"{python}\n"


def test_a_newer_name_is_taken_if_python3_is_too_old(tmp_path: Path, detect: Detect) -> None:
    put_interpreter(tmp_path / "python3", "echo 3.9.2")
    python = put_interpreter(tmp_path / "python3.14", "echo 3.14.0")

    assert detect("--path").stdout == f"{python}\n"


def test_it_says_which_it_took_and_what_it_passed_over(tmp_path: Path, detect: Detect) -> None:
    old = put_interpreter(tmp_path / "python3", "echo 3.9.2")
    python = put_interpreter(tmp_path / "python3.11", "echo 3.11.2")

    said = detect().stdout

    assert said.startswith(f"{python} (Python 3.11.2): the first on PATH")
    assert f"{old}: 3.9.2 is older than 3.11" in said


def test_a_shim_that_resolves_to_nothing_makes_no_noise(tmp_path: Path, detect: Detect) -> None:
    put_interpreter(tmp_path / "python3", "echo 'pyenv: python3: command not found' >&2; exit 127")
    python = put_interpreter(tmp_path / "python3.12", SOUND)

    done = detect()

    assert done.stdout.startswith(f"{python} (Python 3.12.1)")
    assert "python3:" not in done.stdout + done.stderr


def test_a_python_without_venv_names_debians_package(tmp_path: Path, detect: Detect) -> None:
    put_interpreter(tmp_path / "python3", "echo 3.11.2 ensurepip")

    done = detect()

    assert done.returncode == 1
    assert "3.11.2 lacks ensurepip" in done.stdout
    assert "apt-get install python3-venv" in done.stdout


def test_without_any_python_it_fails_with_a_cure(detect: Detect) -> None:
    done = detect("--path")

    assert done.returncode == 1
    assert done.stdout == ""
    assert "apt-get install python3 python3-venv" in done.stderr


def test_the_python_asked_for_is_the_only_one_tried(tmp_path: Path, detect: Detect) -> None:
    put_interpreter(tmp_path / "python3", SOUND)
    old = put_interpreter(tmp_path / "elsewhere" / "python", "echo 3.10.1")

    done = detect("--path", PYTHON=str(old))

    assert done.returncode == 1
    assert f"PYTHON={old} was asked for" in done.stderr


def test_the_checkouts_own_venv_is_never_a_candidate(tmp_path: Path) -> None:
    scripts = shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    own = put_interpreter(tmp_path / ".venv" / "bin" / "python3", SOUND).parent
    python = put_interpreter(tmp_path / "usr" / "python3", SOUND)

    command = ["/bin/sh", str(scripts / "detect_python.sh"), "--path"]
    env = {"PATH": f"{own}:{python.parent}"}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    assert out.stdout == f"{python}\n"


def test_the_oldest_python_is_the_one_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = (ROOT / "scripts" / "detect_python.sh").read_text()

    minor = re.search(r"^MIN_MINOR=(\d+)$", script, re.MULTILINE)

    assert minor is not None
    assert project["requires-python"] == f">=3.{minor[1]}"


def test_each_python_from_the_oldest_to_the_newest_is_claimed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = (ROOT / "scripts" / "detect_python.sh").read_text()

    oldest, newest = re.findall(r"^M(?:IN|AX)_MINOR=(\d+)$", script, re.MULTILINE)

    claimed = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert claimed == [str(minor) for minor in range(int(oldest), int(newest) + 1)]


def test_the_newest_is_looked_for_by_its_name_and_by_its_version(
    tmp_path: Path, detect: Detect
) -> None:
    python = put_interpreter(tmp_path / "python3", "echo 3.13.2")
    put_interpreter(tmp_path / "python3.13", "exit 127")  # a shim of pyenv's

    assert detect("--newest").stdout == f"{python}\n"


def test_the_newest_may_be_pyenvs(tmp_path: Path, detect: Detect) -> None:
    put_interpreter(tmp_path / "python3", SOUND)
    root = tmp_path / "pyenv"
    python = put_interpreter(root / "versions" / "3.13.0" / "bin" / "python3", "echo 3.13.0")

    assert detect("--newest", PYENV_ROOT=str(root)).stdout == f"{python}\n"


class Checkout:
    """A directory with our Makefile and scripts, and a python3 that installs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(ROOT / "scripts", path / "scripts")
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, path)
        for building in ("structured", "bench"):
            (path / building).mkdir()
            shutil.copy(ROOT / building / "pyproject.toml", path / building)
        self.python = put_interpreter(path / "bin" / "python3", INSTALLS)

    def install(
        self, what: str = "run", *, through: Path | None = None, venv: str = ".venv"
    ) -> subprocess.CompletedProcess[str]:
        """`through`: another path to the same checkout."""
        env = {**outside_make(), "VENV": venv, "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        command = ["/bin/sh", str((through or self.path) / "scripts" / "install.sh"), what]
        return subprocess.run(
            command, cwd=self.path, env=env, capture_output=True, text=True, check=False
        )

    def num_installs(self) -> int:
        calls = self.path / "pip-calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_installing_makes_a_venv_and_prints_one_line_a_step(checkout: Checkout) -> None:
    out = checkout.install()

    assert out.returncode == 0, out.stderr
    assert (checkout.path / ".venv" / "bin" / "python").exists()
    assert [line.split(" ...")[0] for line in out.stdout.splitlines()] == [
        f"making .venv with {checkout.python}",
        "installing inferway (run) and its dependencies",
    ]


def test_another_python_is_installed_beside_it(checkout: Checkout) -> None:
    checkout.install()
    checkout.install(venv=".venv-newest")

    assert (checkout.path / ".venv-newest" / "bin" / "python").exists()
    assert checkout.num_installs() == 2
    assert checkout.install(venv=".venv-newest").stdout == ""
    assert checkout.install().stdout == ""


def test_a_second_install_does_nothing(checkout: Checkout) -> None:
    checkout.install()

    assert checkout.install().stdout == ""
    assert checkout.num_installs() == 1


@pytest.mark.parametrize("building", ["", "structured", "bench"])
def test_a_changed_pyproject_is_installed_again(checkout: Checkout, building: str) -> None:
    checkout.install()
    with (checkout.path / building / "pyproject.toml").open("a") as file:
        file.write("# one more dependency\n")

    checkout.install()

    assert checkout.num_installs() == 2


@pytest.mark.parametrize(("what", "brings"), [("run", False), ("dev", True)])
def test_only_developers_get_the_benchmarks(checkout: Checkout, what: str, brings: bool) -> None:
    checkout.install(what)

    assert ("--editable ./bench" in (checkout.path / "pip-calls").read_text()) == brings


def test_what_tests_need_holds_what_running_needs(checkout: Checkout) -> None:
    checkout.install("dev")
    checkout.install("run")

    assert checkout.num_installs() == 1


def test_a_venv_whose_python_is_gone_is_replaced(checkout: Checkout) -> None:
    checkout.install()
    (checkout.path / ".venv" / "bin" / "python").unlink()

    out = checkout.install()

    assert out.stdout.startswith("replacing .venv")
    assert checkout.num_installs() == 2


def test_a_venv_made_with_a_python_that_is_too_old_is_replaced(checkout: Checkout) -> None:
    checkout.install()
    put_interpreter(checkout.path / ".venv" / "bin" / "python", "echo 3.10.4")

    assert checkout.install().stdout.startswith("replacing .venv")


def test_a_venv_of_another_directory_is_replaced(checkout: Checkout) -> None:
    checkout.install()
    (checkout.path / ".venv" / "bin" / "pip").write_text("#!/elsewhere/.venv/bin/python\n")

    assert checkout.install().stdout.startswith("replacing .venv")


def test_a_checkout_reached_through_a_link_is_the_same(
    checkout: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("elsewhere") / "link"
    link.symlink_to(checkout.path)
    checkout.install()

    assert checkout.install(through=link).stdout == ""


def test_a_failed_install_shows_the_log_and_is_tried_again(checkout: Checkout) -> None:
    fails = checkout.path / "pip-fails"
    fails.touch()
    failed = checkout.install()
    fails.unlink()

    again = checkout.install()

    assert failed.returncode == 1
    assert "no matching distribution" in failed.stderr
    assert again.returncode == 0
    assert checkout.num_installs() == 2


# Stands where the demo stands: says that it runs, and ends cleanly on Ctrl-C.
DEMO = """\
import os, signal, sys
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until it is waited for
print("port", os.environ.get("HTTP_PORT"), "arguments", sys.argv[1:], flush=True)
if "--exit" not in sys.argv:
    signal.sigwait([signal.SIGINT])
    print("stopped cleanly", flush=True)
"""


@pytest.fixture
def installed(checkout: Checkout) -> Checkout:
    """As after `make demo` has installed, with DEMO in the place of `inferway`."""
    checkout.install()
    binaries = checkout.path / ".venv" / "bin"
    for name in ("python", "inferway"):
        (binaries / name).unlink(missing_ok=True)
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "inferway").write_text(f"#!{sys.executable}\n{DEMO}")
    (binaries / "inferway").chmod(0o755)
    return checkout


def test_make_demo_hands_port_and_arguments_on(installed: Checkout) -> None:
    out = run_make(installed.path, "demo", "HTTP_PORT=9000", "ARGS=--exit")

    assert out == "port 9000 arguments ['demo', '--exit']\n"


# Runs its arguments on a terminal of their own; what comes on stdin is typed there.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_ctrl_c_at_make_demo_ends_the_demo_and_make_with_status_0(installed: Checkout) -> None:
    terminal = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "make", "demo"],
        cwd=installed.path,
        env=outside_make(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        first = terminal.stdout.readline()
        terminal.stdin.write(b"\x03")
        terminal.stdin.flush()
        rest = terminal.stdout.read().decode()

    assert first.startswith(b"port")
    assert "stopped cleanly" in rest
    assert "make" not in rest
    assert terminal.returncode == 0


@pytest.mark.parametrize("there", [None, [], ["etcd"], ["etcd", "kube-apiserver"]])
def test_make_kube_names_the_programs_that_it_lacks(
    there: list[str] | None, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "KUBE_ASSETS"}
    if there is not None:
        env["KUBE_ASSETS"] = str(tmp_path)
        for name in there:
            put_interpreter(tmp_path / name, "exit 0")
    needed = ["etcd", "kube-apiserver"]
    missing = [name for name in needed if name not in (there or [])]

    command = [str(ROOT / "scripts" / "kube_assets.sh")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == bool(missing)
    assert done.stdout == ""
    if missing:
        assert f"KUBE_ASSETS={env.get('KUBE_ASSETS', '')} must be a directory" in done.stderr
        assert done.stderr.endswith(f"missing: {' and '.join(missing)}\n")
    else:
        assert done.stderr == ""


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None

    shown = run_make(ROOT, "help").splitlines()

    assert [line.split()[1] for line in shown] == targets[1].split()
