"""Certificates of the picker: its own, made at the start, or files that may be changed under it."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from inferway.errors import ConfigError

log = logging.getLogger("inferway.picker")

_YEARS = datetime.timedelta(days=3650)  # as the reference's own (GIE internal/tls)


def self_signed() -> tuple[bytes, bytes]:
    """A new key and its certificate, PEM. Proxies are told to accept any: it only keeps the wire
    from being read."""
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


@dataclass(slots=True)
class CertificateFiles:
    """`tls.key` and `tls.crt` of a directory, as Kubernetes mounts a secret. Read again when they
    have changed; a pair that does not fit together is refused, and the old one stays."""

    directory: Path
    _seen: tuple[int, int] = (0, 0)
    _pair: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)

    def read(self) -> tuple[bytes, bytes]:
        """Raises ConfigError."""
        try:
            pair = (self._key.read_bytes(), self._certificate.read_bytes())
        except OSError as e:
            raise ConfigError(f"--cert-path {self.directory}: {e.filename}: {e.strerror}") from e
        _check_pair(self.directory, *pair)
        self._pair, self._seen = pair, self._stamps()
        return pair

    def changed(self) -> tuple[bytes, bytes] | None:
        """The new pair, once for each change."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            old = self._pair
            new = self.read()
        except (OSError, ConfigError) as e:
            log.warning("the certificate was not reloaded, and the old one stays: %s", e)
            return None
        if new == old:
            return None
        log.info("the certificate in %s was reloaded", self.directory)
        return new

    def _stamps(self) -> tuple[int, int]:
        return self._key.stat().st_mtime_ns, self._certificate.stat().st_mtime_ns

    @property
    def _key(self) -> Path:
        return self.directory / "tls.key"

    @property
    def _certificate(self) -> Path:
        return self.directory / "tls.crt"


def _check_pair(directory: Path, key: bytes, certificate: bytes) -> None:
    """Raises ConfigError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        private = serialization.load_pem_private_key(key, None)
        public = x509.load_pem_x509_certificates(certificate)[0].public_key()
    except (ValueError, TypeError) as e:
        raise ConfigError(
            f"--cert-path {directory}: expected PEM in tls.key and tls.crt: {e}"
        ) from e
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != public.public_bytes(*form):
        raise ConfigError(f"--cert-path {directory}: tls.key is not the key of tls.crt")


class PickerCertificate:
    """Our side of TLS with proxies. `context` stays the same object."""

    def __init__(self, files: CertificateFiles | None, *, reload: bool = False) -> None:
        """`files` None: a certificate of our own. Raises ConfigError."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["h2"])
        self._files = files if reload else None
        self._take(*(self_signed() if files is None else files.read()))

    def refresh(self) -> None:
        """Connections from now on see what the files say now."""
        new = None if self._files is None else self._files.changed()
        if new is not None:
            self._take(*new)

    def _take(self, key: bytes, certificate: bytes) -> None:
        with _as_file(certificate + b"\n" + key) as path:
            self.context.load_cert_chain(path)


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


def credentials(directory: Path | None, *, reload: bool = False) -> PickerCertificate:
    """Of `directory`, or of a certificate of our own. Raises ConfigError."""
    files = None if directory is None else CertificateFiles(directory)
    return PickerCertificate(files, reload=reload)
