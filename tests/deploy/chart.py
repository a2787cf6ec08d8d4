"""The chart of deploy/helm, rendered by a real Helm."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from inferway.cli.serve import serve
from inferway.cli.serve_options import overrides
from inferway.config import ServeSettings, load_settings
from inferway_llmd.cli import epp, picker_settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "inferway"
VALUE_SETS = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*.yaml"))

Tree = dict[str, Any]


@cache
def helm(major: str) -> str:
    """The path of a Helm, installed if it is not there."""
    script = [str(ROOT / "scripts" / "install_helm.sh"), major]
    done = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def run(major: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Helm with an empty home of its own, so that nothing of this machine's has effect."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [helm(major), *(str(each) for each in arguments)],
            env={"HOME": home, "PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )


def said_of(values: Path) -> list[str]:
    return ["--values", str(values)]


@dataclass(frozen=True)
class Rendered:
    """The objects that a release consists of."""

    objects: Sequence[Tree]

    def of(self, kind: str) -> list[Tree]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Tree:
        [found] = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[tuple[Tree, Tree]]:
        """(Deployment, its pod's spec) of each."""
        for deployment in self.of("Deployment"):
            yield deployment, deployment["spec"]["template"]["spec"]

    def settings(self, deployment: Tree) -> ServeSettings:
        """What our program makes of a pod's arguments and of the file that is mounted there."""
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        words = list(container["args"])
        assert words[0] == "--config=/etc/inferway/inferway.yaml"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "inferway.yaml"
            file.write_text(self._mounted(pod, "/etc/inferway")["inferway.yaml"])
            words[0] = f"--config={file}"
            return _settings(container["command"], words)

    def _mounted(self, pod: Tree, path: str) -> dict[str, str]:
        [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == path]
        [volume] = [v for v in pod["volumes"] if v["name"] == mount["name"]]
        data: dict[str, str] = self.one("ConfigMap", volume["configMap"]["name"])["data"]
        return data


def _settings(command: list[str], words: list[str]) -> ServeSettings:
    if command == ["inferway", "epp"]:
        flags = dict(epp.make_context("epp", words).params)
        told, ignored = picker_settings(flags.pop("config"), flags)
        assert ignored == []
        return told
    assert command == ["inferway", "serve"]
    flags = dict(serve.make_context("serve", words).params)
    return load_settings(flags.pop("config"), overrides(**flags))


def render(
    major: str,
    arguments: Sequence[str],
    *,
    release: str = "inferway",
    chart: Path = CHART,
) -> Rendered:
    """The objects of a release in the namespace `serving`."""
    done = run(major, "template", release, chart, "--namespace", "serving", *arguments)
    assert done.returncode == 0, done.stderr
    return Rendered([each for each in yaml.safe_load_all(done.stdout) if each])


@cache
def value_set(major: str, name: str) -> Rendered:
    """The objects of one of VALUE_SETS."""
    return render(major, said_of(CHART / "ci" / f"{name}-values.yaml"))


def with_values(major: str, values: Tree, folder: Path) -> subprocess.CompletedProcess[str]:
    """What `helm template` says of these values."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    return run(major, "template", "inferway", CHART, "--namespace", "serving", *said_of(file))
