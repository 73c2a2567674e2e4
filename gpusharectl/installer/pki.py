"""The certificates of extender, kube-scheduler and webhook: what to write, and when.

Pure: ``plan_certificates`` takes the existing files and the time, and returns the files
to write. They are PEM, named ``<name>.crt`` and ``<name>.key``; the authority is
``ca``. Each host has its own, because an extender serves only the kube-scheduler beside
it. The webhook has one for the whole cluster. Keys are ECDSA P-256.

A certificate is renewed when less than a third of its time is left. So the authority,
valid for ten years, outlives what it signs for one year.
"""

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpushare.kube.names import EXTENDER_SERVER_NAME

AUTHORITY_LASTS = timedelta(days=3652)
CERTIFICATE_LASTS = timedelta(days=365)
_BACKDATED = timedelta(hours=1)
"""For clocks that are a little behind."""
# Which side of a connection may use the certificate.
SERVER_SIDE = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT_SIDE = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class WantedCert:
    """A certificate that must exist."""

    name: str
    """Of its files: ``server`` means ``server.crt`` and ``server.key``."""
    common_name: str
    """For people; no client checks it."""
    purpose: x509.ObjectIdentifier
    hosts: tuple[str, ...] = ()
    """IP addresses and DNS names by which clients reach the server."""
    uid: int = 0
    """The owner of the key file."""

    @property
    def key_usage(self) -> x509.ExtendedKeyUsage:
        """Its purpose, as a certificate extension."""
        return x509.ExtendedKeyUsage([self.purpose])

    @property
    def alternatives(self) -> x509.SubjectAlternativeName | None:
        """Its hosts, as a certificate extension; None if it has none."""
        names = [_alternative(host) for host in self.hosts]
        return x509.SubjectAlternativeName(names) if names else None


@dataclass(frozen=True, slots=True)
class CertPair:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The content of ``.crt``."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The content of ``.key``: PKCS 8, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def make_authority(now: datetime) -> CertPair:
    """Make an authority that may sign certificates, but no further authority."""
    key, name = ec.generate_private_key(ec.SECP256R1()), "gpushare CA"
    builder = _builder(name, key, now, AUTHORITY_LASTS, signs=True)
    builder = builder.issuer_name(_name(name))
    return CertPair(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(
    authority: CertPair, wanted: WantedCert, now: datetime
) -> CertPair:
    """Sign a certificate for a new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(
        authority.key.public_key()
    )
    builder = (
        _builder(wanted.common_name, key, now, CERTIFICATE_LASTS, signs=False)
        .issuer_name(authority.certificate.subject)
        .add_extension(issuer, critical=False)
        .add_extension(wanted.key_usage, critical=False)
    )
    if wanted.alternatives:
        builder = builder.add_extension(wanted.alternatives, critical=False)
    return CertPair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    lasts: timedelta,
    *,
    signs: bool,
) -> x509.CertificateBuilder:
    subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    basic = x509.BasicConstraints(ca=signs, path_length=0 if signs else None)
    usage = x509.KeyUsage(
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
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lasts)
        .add_extension(subject_key, critical=False)
        .add_extension(basic, critical=True)
        .add_extension(usage, critical=True)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


AUTHORITY = "ca"
EXTENDER_UID = 65532
"""The extender runs as this user, so of all keys it can read only its own."""
EXTENDER = WantedCert(
    "server",
    "gpushare-extender",
    SERVER_SIDE,
    ("127.0.0.1", "::1", "localhost", EXTENDER_SERVER_NAME),
    EXTENDER_UID,
)
SCHEDULER = WantedCert("client", "gpushare-kube-scheduler", CLIENT_SIDE)
WEBHOOK = WantedCert(
    "tls", "gpushare-webhook", SERVER_SIDE, ("gpushare-webhook.kube-system.svc",)
)
"""The API server calls the Service by this name."""
_OF_SCHEDULER = ("ca.crt", "client.crt")


@dataclass(frozen=True, slots=True)
class TlsFile:
    """The content of a file, its mode and owner."""

    content: bytes
    mode: int
    uid: int = 0


def plan_certificates(
    existing: Mapping[str, bytes],
    now: datetime,
    wanted: Sequence[WantedCert] = (EXTENDER, SCHEDULER),
) -> Mapping[str, TlsFile]:
    """Return the files to write, by name; empty if all exist and are valid.

    A file that is missing, broken, due for renewal or not as wanted is made again; with
    the authority, all that it signs. If an earlier call was interrupted between files,
    they count as broken.
    """
    files: dict[str, TlsFile] = {}
    authority = read_pair(existing, AUTHORITY)
    if authority is None or is_renewal_due(authority.certificate, now):
        authority = make_authority(now)
        files |= _files(AUTHORITY, authority, uid=0)
    for certificate in wanted:
        pair = read_pair(existing, certificate.name)
        if pair is None or not _serves(
            pair.certificate, certificate, authority.certificate, now
        ):
            files |= _files(
                certificate.name,
                issue_certificate(authority, certificate, now),
                certificate.uid,
            )
    return files


def plan_webhook(existing: Mapping[str, bytes], now: datetime) -> Mapping[str, bytes]:
    """Return the webhook's certificate and its authority's; empty while it is valid.

    Each has its own authority, whose key is not stored, so that nothing in the cluster
    can sign what the API server would trust.
    """
    authority = _certificate(existing.get(f"{AUTHORITY}.crt", b""))
    pair = read_pair(existing, WEBHOOK.name)
    if authority and pair and _serves(pair.certificate, WEBHOOK, authority, now):
        return {}
    made = make_authority(now)
    pair = issue_certificate(made, WEBHOOK, now)
    return {
        f"{AUTHORITY}.crt": made.certificate_pem,
        f"{WEBHOOK.name}.crt": pair.certificate_pem,
        f"{WEBHOOK.name}.key": pair.key_pem,
    }


def join_bundle(newest: bytes, others: bytes, now: datetime) -> bytes:
    """Join authorities in PEM: the newest first, each once, without expired ones.

    If ``others`` cannot be read, they are left out.
    """
    try:
        read = x509.load_pem_x509_certificates(others)
    except ValueError:
        read = []
    good = [authority for authority in read if now <= authority.not_valid_after_utc]
    texts = [authority.public_bytes(serialization.Encoding.PEM) for authority in good]
    return b"".join(dict.fromkeys([newest, *texts]))


def scheduler_stamp(files: Mapping[str, bytes]) -> str:
    """Return a text that changes exactly when kube-scheduler must be restarted.

    As an annotation of its manifest it makes kubelet restart it, even if the installer
    was interrupted after it had written the files.
    """
    digests = [hashlib.sha256(files.get(name, b"")).digest() for name in _OF_SCHEDULER]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def is_renewal_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether to renew: less than a third of its time is left.

    A certificate that is not valid yet is due, too: the clock was wrong.
    """
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < begin or end - now < (end - begin) / 3


def read_pair(files: Mapping[str, bytes], name: str) -> CertPair | None:
    """Read ``name.crt`` and ``name.key``; None if none is as the plan writes it."""
    try:
        certificate = x509.load_pem_x509_certificate(files[f"{name}.crt"])
        key = serialization.load_pem_private_key(files[f"{name}.key"], None)
        fits = key.public_key() == certificate.public_key()
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm):
        # TypeError: the key is encrypted.
        return None
    if not fits or not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    return CertPair(certificate, key)


def _certificate(pem: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def _serves(
    certificate: x509.Certificate,
    wanted: WantedCert,
    authority: x509.Certificate,
    now: datetime,
) -> bool:
    """Return whether it is valid, signed by this authority, and as wanted."""
    try:
        certificate.verify_directly_issued_by(authority)
        extensions = {type(each.value): each.value for each in certificate.extensions}
    except (InvalidSignature, ValueError, TypeError):
        return False
    return (
        not is_renewal_due(certificate, now)
        and extensions.get(x509.ExtendedKeyUsage) == wanted.key_usage
        and extensions.get(x509.SubjectAlternativeName) == wanted.alternatives
    )


def _files(name: str, pair: CertPair, uid: int) -> dict[str, TlsFile]:
    return {
        f"{name}.crt": TlsFile(pair.certificate_pem, 0o644),
        f"{name}.key": TlsFile(pair.key_pem, 0o600, uid),
    }
