"""Keys and certificates: an authority of our own, and what it signs.

No clock: now is an argument. Keys are ECDSA P-256, which Go and OpenSSL both take and
sign with in well under a millisecond.
"""

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LASTS = timedelta(days=3652)
CERTIFICATE_LASTS = timedelta(days=365)
_BACKDATED = timedelta(hours=1)
"""For a clock that is set back after the certificates were made."""


class Purpose(Enum):
    """Which side shows the certificate; nobody can use it on the other one."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class Wanted:
    """One certificate to have."""

    name: str
    """Of its files: ``server`` for ``server.crt`` and ``server.key``."""
    common_name: str
    """For people; nothing is decided by it."""
    purpose: Purpose
    hosts: tuple[str, ...] = ()
    """IP addresses and DNS names under which a client may reach the server."""
    uid: int = 0
    """Who owns the key, and so can read it."""

    @property
    def key_usage(self) -> x509.ExtendedKeyUsage:
        """Its purpose, as it stands in the certificate."""
        return x509.ExtendedKeyUsage([self.purpose.value])

    @property
    def alternatives(self) -> x509.SubjectAlternativeName | None:
        """Its hosts, as they stand in the certificate; None where it has none."""
        if not self.hosts:
            return None
        return x509.SubjectAlternativeName([_alternative(host) for host in self.hosts])


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """As it stands in ``.crt``."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """As it stands in ``.key``: PKCS 8, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def make_authority(now: datetime) -> Pair:
    """Make an authority that may sign certificates, but no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("gpushare CA")
    builder = (
        _builder(name, key, now, AUTHORITY_LASTS)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, wanted: Wanted, now: datetime) -> Pair:
    """Sign a certificate for a new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
        authority.key.public_key()
    )
    builder = (
        _builder(_name(wanted.common_name), key, now, CERTIFICATE_LASTS)
        .issuer_name(authority.certificate.subject)
        .add_extension(issuer, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(wanted.key_usage, critical=False)
    )
    if wanted.alternatives:
        builder = builder.add_extension(wanted.alternatives, critical=False)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lasts: timedelta
) -> x509.CertificateBuilder:
    """Begin a certificate with what every one has."""
    subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lasts)
        .add_extension(subject_key, critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Say what the key is for: to sign certificates, or to speak TLS."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
