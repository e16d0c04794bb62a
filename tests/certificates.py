"""Certificates for tests: authorities, and what they issue, as PEM files."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import KeySerializationEncryption, NoEncryption
from cryptography.x509.oid import NameOID

_Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Identity:
    """Paths of a certificate and its key."""

    certificate: str
    key: str

    @property
    def options(self) -> dict[str, str]:
        """As options of a client."""
        return {"tls_certificate_file_path": self.certificate, "tls_private_key_file_path": self.key}

    def server(self, *, asks: "Authority | None" = None) -> ssl.SSLContext:
        """The context of a server with this identity, which asks its clients for certificates of an authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if asks is not None:
            context.load_verify_locations(asks.path)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority:
    """A CA, with its files in a folder. RSA keys where a broker wants them, else quicker ones.

    With `even` certificates and signatures have the same size each time.
    """

    def __init__(self, folder: Path, name: str = "CA", *, rsa: bool = False, even: bool = False) -> None:
        self._folder = folder
        self._rsa = rsa
        self._even = even
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = self._new_key()
        certificate = self._signed(self._name, self._key, days=30, authority=True, names=())
        self.path = str(folder / f"{name}.crt")
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        names: tuple[str, ...] = (),
        *,
        days: int = 30,
        password: bytes | None = None,
        file: str | None = None,
    ) -> Identity:
        """A certificate with a common name and subject alternative names, to the files of `file` (as `name`).

        It ends in so many days, which may be below 0.
        """
        key = self._new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, days=days, authority=False, names=names)
        path = self._folder / (file or name)
        identity = Identity(f"{path}.crt", f"{path}.key")
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        Path(identity.certificate).write_bytes(certificate.public_bytes(pem))
        Path(identity.key).write_bytes(key.private_bytes(pem, pkcs8, encryption))
        return identity

    def _new_key(self) -> _Key:
        if self._rsa:
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        if self._even:
            return ed25519.Ed25519PrivateKey.generate()
        return ec.generate_private_key(ec.SECP256R1())

    def _signed(
        self, subject: x509.Name, key: _Key, *, days: int, authority: bool, names: tuple[str, ...]
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number() | 1 << 156)  # 20 bytes, never one less
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        return builder.sign(self._key, None if self._even else hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
