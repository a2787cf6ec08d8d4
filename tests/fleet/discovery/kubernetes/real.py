"""A real API server (etcd and kube-apiserver, as envtest has them), for what tests do to a cluster.

KUBE_ASSETS=DIR: a directory with both binaries. Nothing else of a cluster runs: pods are objects,
and their status is what a test writes.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
from tests.fleet.discovery.kubernetes.api_server import Object

from inferway_bench.processes import free_port

_TOKEN = "admin-of-the-test"
_CORE = "/api/v1"
_START_SECONDS = 120.0
_KINDS = {
    "inferencepools": ("inference.networking.k8s.io", "v1", "InferencePool"),
    "inferenceobjectives": ("inference.networking.x-k8s.io", "v1alpha2", "InferenceObjective"),
    "inferencemodelrewrites": (
        *("inference.networking.x-k8s.io", "v1alpha2"),
        "InferenceModelRewrite",
    ),
}


def assets() -> Path:
    """Where the binaries are."""
    said = os.environ.get("KUBE_ASSETS")
    if not said:
        raise RuntimeError("KUBE_ASSETS must be a directory with etcd and kube-apiserver")
    return Path(said)


class RealApiServer:
    """From `start` to `stop`; `wipe` makes it empty for the next test."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="inferway-kube-")
        directory = Path(self._directory.name)
        (directory / "tokens").write_text(f"{_TOKEN},admin,admin,system:masters\n")
        self.token_file = directory / "token"
        self.token_file.write_text(_TOKEN)
        etcd, peer, port = free_port(), free_port(), free_port()
        self._etcd = f"http://127.0.0.1:{etcd}/v3/kv"
        self._run(
            *("etcd", "--data-dir", directory / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", f"http://127.0.0.1:{etcd}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{etcd}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        )
        _make_key(directory / "account.key")
        self._run(
            *("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{etcd}"),
            *("--secure-port", port, "--bind-address", "127.0.0.1"),
            "--watch-cache=false",  # the past is etcd's alone: see `forget`
            *("--cert-dir", directory / "certs", "--token-auth-file", directory / "tokens"),
            *("--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC"),
            *("--disable-admission-plugins", "ServiceAccount"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", directory / "account.key"),
            *("--service-account-signing-key-file", directory / "account.key"),
        )
        self.url = f"https://127.0.0.1:{port}"
        self.ca_file = directory / "certs" / "apiserver.crt"
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._until_ready()
        self.ask("POST", f"{_CORE}/namespaces", {"metadata": {"name": "ns"}})
        for kind, said in _KINDS.items():
            self._define(kind, *said)
        return self

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        self._directory.cleanup()

    def _run(self, name: str, *arguments: object) -> None:
        log = (Path(self._directory.name) / f"{name}.log").open("wb")
        command = [str(self._binaries / name), *map(str, arguments)]
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        log.close()

    def _until_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(self._logs())
            with suppress(OSError, RuntimeError):  # not there, or not ready
                self.ask("GET", "/readyz")
                return
            time.sleep(0.1)
        raise TimeoutError(self._logs())

    def _logs(self) -> str:
        found = sorted(Path(self._directory.name).glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in found)

    def _define(self, kind: str, group: str, version: str, name: str) -> None:
        """A kind of objects whose fields are any."""
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        definition = {
            "metadata": {
                "name": f"{kind}.{group}",
                # of the group k8s.io, a review must be named
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": kind, "singular": name.lower(), "kind": name},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.ask("POST", path, definition)
        while self.ask("GET", self.path(kind), missing=True) is None:
            time.sleep(0.05)  # it is not served at once

    def path(self, kind: str, name: str = "") -> str:
        start = _CORE
        if kind in _KINDS:
            group, version, _ = _KINDS[kind]
            start = f"/apis/{group}/{version}"
        return f"{start}/namespaces/ns/{kind}" + (f"/{name}" if name else "")

    def ask(
        self, method: str, path: str, said: Object | None = None, *, missing: bool = False
    ) -> Any:
        """The answer; None for what is not there, if it may be `missing`."""
        request = Request(
            self.url + path,
            None if said is None else msgspec.json.encode(said),
            {"authorization": f"Bearer {_TOKEN}", "content-type": "application/json"},
            method=method,
        )
        try:
            with urlopen(request, context=self._tls) as response:
                answer = response.read()
        except HTTPError as e:
            if missing and e.code == 404:
                return None
            raise RuntimeError(f"{method} {path}: {e.code} {e.read().decode()}") from e
        return msgspec.json.decode(answer) if answer.startswith(b"{") else None

    def wipe(self) -> None:
        for kind in ("pods", *_KINDS):
            for item in (self.ask("GET", self.path(kind)))["items"]:
                self.delete(kind, item["metadata"]["name"])

    def forget(self) -> None:
        """The past, as etcd does every five minutes."""
        with urlopen(Request(f"{self._etcd}/range", b'{"key":"AA=="}')) as response:
            revision = msgspec.json.decode(response.read())["header"]["revision"]
        said = msgspec.json.encode({"revision": revision})
        urlopen(Request(f"{self._etcd}/compaction", said)).close()

    def put(self, kind: str, item: Object) -> None:
        """Made, or changed to this."""
        name = item["metadata"]["name"]
        now = self.ask("GET", self.path(kind, name), missing=True)
        if kind in _KINDS:
            group, version, singular = _KINDS[kind]
            item = {**item, "apiVersion": f"{group}/{version}", "kind": singular}
            self._write(kind, name, now, item)
            return
        spec = {"containers": [{"name": "engine", "image": "engine"}]}
        made = self._write(kind, name, now, {"spec": (now or {}).get("spec", spec), **item})
        if "status" in item:
            status = {**made, "status": item["status"]}
            self.ask("PUT", self.path(kind, name) + "/status", status)

    def _write(self, kind: str, name: str, now: Object | None, item: Object) -> Any:
        if now is None:
            return self.ask("POST", self.path(kind), item)
        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
        item = {**item, "metadata": {**item["metadata"], **version}}
        return self.ask("PUT", self.path(kind, name), item)

    def delete(self, kind: str, name: str) -> None:
        self.ask("DELETE", self.path(kind, name) + "?gracePeriodSeconds=0")


def _make_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
