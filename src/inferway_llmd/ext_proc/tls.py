"""Certificates of the picker: its own, made at the start, or files that may be changed under it."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from inferway.errors import ConfigError
from inferway.http.listening import no_password

log = logging.getLogger("inferway.picker")

_YEARS = datetime.timedelta(days=3650)  # as the reference's own (GIE internal/tls)


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, PEM. Proxies are told to accept any: it only keeps the
    wire from being read."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Inferway endpoint picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _YEARS)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    written = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return written, certificate.public_bytes(pem)


class PickerCertificate:
    """Our side of TLS with proxies: a certificate of our own, or `tls.crt` and `tls.key` of a
    directory, as Kubernetes mounts a secret. `context` stays the same object."""

    def __init__(self, directory: Path | None, *, reload: bool = False) -> None:
        """With `reload` the files are read again when they have changed. Raises ConfigError."""
        self.context = _new_context()
        self._watched = directory if reload else None
        self._seen = () if directory is None else _stamps(directory)
        self._pair = self_signed() if directory is None else _read(directory)
        _load(self.context, *self._pair)

    def refresh(self) -> None:
        """Let connections from now on see what the files say now. What cannot be used is logged,
        and the old certificate stays."""
        directory = self._watched
        if directory is None:
            return
        try:
            stamps = _stamps(directory)
            if stamps == self._seen:
                return
            self._seen = stamps
            pair = _read(directory)
        except (OSError, ConfigError) as e:
            log.warning("the certificate was not reloaded, and the old one stays: %s", e)
            return
        if pair != self._pair:
            self._pair = pair
            _load(self.context, *pair)
            log.info("the certificate in %s was reloaded", directory)


def _stamps(directory: Path) -> tuple[int, ...]:
    """Return when the files were written; nothing of one that is not there."""
    files = (directory / "tls.key", directory / "tls.crt")
    return tuple([file.stat().st_mtime_ns for file in files if file.exists()])


def _read(directory: Path) -> tuple[bytes, bytes]:
    """Return the key and its certificate. Raises ConfigError."""
    try:
        key, certificate = ((directory / name).read_bytes() for name in ("tls.key", "tls.crt"))
    except OSError as e:
        raise ConfigError(f"--cert-path {directory}: {e.filename}: {e.strerror}") from e
    try:
        _load(_new_context(), key, certificate)
    except (ssl.SSLError, ValueError) as e:
        reason = getattr(e, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"--cert-path {directory}: tls.key is not the key of tls.crt"
            ) from None
        raise ConfigError(
            f"--cert-path {directory}: expected PEM in tls.key and tls.crt: {reason or e}"
        ) from e
    return key, certificate


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


def _load(context: ssl.SSLContext, key: bytes, certificate: bytes) -> None:
    with _as_file(certificate + b"\n" + key) as path:
        context.load_cert_chain(path, password=no_password)


@contextmanager
def _as_file(text: bytes) -> Iterator[str]:
    """OpenSSL reads files alone; one in memory can be had where no directory can be written to."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("certificate")
        try:
            os.write(number, text)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        yield file.name
