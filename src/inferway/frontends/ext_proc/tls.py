"""Certificates of the picker: its own, made at the start, or files that may be changed under it."""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass, field
from pathlib import Path

import grpc

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
            log.warning("certificate not reloaded, the old one stays: %s", e)
            return None
        if new == old:
            return None
        log.info("certificate of %s reloaded", self.directory)
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
    """Raises ConfigError. gRPC itself would only fail each handshake."""
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


def credentials(directory: Path | None, *, reload: bool = False) -> grpc.ServerCredentials:
    """Of `directory`, or of a certificate of our own. Raises ConfigError."""
    if directory is None:
        return grpc.ssl_server_credentials([self_signed()])
    files = CertificateFiles(directory)
    first = files.read()
    if not reload:
        return grpc.ssl_server_credentials([first])

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        new = files.changed()
        return None if new is None else grpc.ssl_server_certificate_configuration([new])

    return grpc.dynamic_ssl_server_credentials(
        grpc.ssl_server_certificate_configuration([first]),
        fetch,  # its None says that nothing has changed
    )
