"""The certificates of extender, kube-scheduler and webhook: what to write, and when.

Nothing here reads a clock or a disk: ``plan`` takes the files as they are and gives
those that must be written. They are PEM and called ``<name>.crt`` and ``<name>.key``;
the authority's name is ``ca``. Each host has its own, because each extender serves the
kube-scheduler beside it and nobody else. The webhook has one for the whole cluster.

Each is renewed when less than a third of its time is left. So the authority, made for
ten years, outlives what it signs for one, and stays when that is renewed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpusharectl.authority import Pair, Purpose, Wanted, issue, make_authority

AUTHORITY = "ca"
EXTENDER_UID = 65532
"""Whom the extender runs as: of all keys it can read its own alone."""
SERVER_NAME = "gpushare-extender.kube-system.svc"
"""What kube-scheduler's stanza gives as ``serverName``."""
EXTENDER = Wanted(
    "server",
    "gpushare-extender",
    Purpose.SERVER,
    ("127.0.0.1", "::1", "localhost", SERVER_NAME),
    EXTENDER_UID,
)
SCHEDULER = Wanted("client", "gpushare-kube-scheduler", Purpose.CLIENT)
WEBHOOK = Wanted(
    "tls", "gpushare-webhook", Purpose.SERVER, ("gpushare-webhook.kube-system.svc",)
)
"""By this name the API server calls the Service."""
_OF_SCHEDULER = ("ca.crt", "client.crt")
_PUBLIC = 0o644
_SECRET = 0o600


@dataclass(frozen=True, slots=True)
class TlsFile:
    """What a file must hold, and who may read it."""

    content: bytes
    mode: int
    uid: int = 0


def plan(
    existing: Mapping[str, bytes],
    now: datetime,
    wanted: Sequence[Wanted] = (EXTENDER, SCHEDULER),
) -> Mapping[str, TlsFile]:
    """Give the files to write, by name; none where all are there and good.

    What is missing, broken, due or not as wanted is made anew, and with the authority
    all that it signs. Files of an earlier call of which only some were written count
    as broken, so that the next call mends them.
    """
    files: dict[str, TlsFile] = {}
    authority = read_pair(existing, AUTHORITY)
    if authority is None or due(authority.certificate, now):
        authority = make_authority(now)
        files |= _files(AUTHORITY, authority, uid=0)
    for one in wanted:
        held = read_pair(existing, one.name)
        if held is None or not _serves(
            held.certificate, one, authority.certificate, now
        ):
            files |= _files(one.name, issue(authority, one, now), one.uid)
    return files


def plan_webhook(existing: Mapping[str, bytes], now: datetime) -> Mapping[str, bytes]:
    """Give the webhook's certificate with its authority's; nothing while it is good.

    Each comes with an authority of its own, whose key is kept nowhere: nothing in the
    cluster can sign what its API server would believe.
    """
    authority = _certificate(existing.get(f"{AUTHORITY}.crt", b""))
    held = read_pair(existing, WEBHOOK.name)
    if authority and held and _serves(held.certificate, WEBHOOK, authority, now):
        return {}
    made = make_authority(now)
    pair = issue(made, WEBHOOK, now)
    return {
        f"{AUTHORITY}.crt": made.certificate_pem,
        f"{WEBHOOK.name}.crt": pair.certificate_pem,
        f"{WEBHOOK.name}.key": pair.key_pem,
    }


def bundle(newest: bytes, others: bytes, now: datetime) -> bytes:
    """Put authorities together: the newest first, each once, none that has expired.

    Both are PEM, of ``others`` any number; what of them cannot be read is left out.
    """
    try:
        read = x509.load_pem_x509_certificates(others)
    except ValueError:
        read = []
    good = [one for one in read if now <= one.not_valid_after_utc]
    texts = [one.public_bytes(serialization.Encoding.PEM) for one in good]
    return b"".join(dict.fromkeys([newest, *texts]))


def scheduler_stamp(files: Mapping[str, bytes]) -> str:
    """Give a text that changes exactly when kube-scheduler must start anew.

    In an annotation of its manifest it makes kubelet do so, also where an installer
    was interrupted between the files and the restart.
    """
    digest = hashlib.sha256()
    for name in _OF_SCHEDULER:
        digest.update(hashlib.sha256(files.get(name, b"")).digest())
    return digest.hexdigest()


def due(certificate: x509.Certificate, now: datetime) -> bool:
    """Tell whether it is time to renew: less than a third of its time is left.

    One that is not valid yet is due too: its clock was wrong.
    """
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < begin or end - now < (end - begin) / 3


def not_after(pem: bytes) -> datetime | None:
    """Say when the certificate in a file expires; None where there is none in it."""
    found = _certificate(pem)
    return None if found is None else found.not_valid_after_utc


def read_pair(files: Mapping[str, bytes], name: str) -> Pair | None:
    """Read ``name.crt`` with ``name.key``; None where they are no pair that we make."""
    try:
        certificate = x509.load_pem_x509_certificate(files[f"{name}.crt"])
        key = serialization.load_pem_private_key(files[f"{name}.key"], None)
        fits = key.public_key() == certificate.public_key()
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm):
        # TypeError: the key wants a password.
        return None
    if not fits or not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    return Pair(certificate, key)


def _certificate(pem: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def _serves(
    held: x509.Certificate, wanted: Wanted, authority: x509.Certificate, now: datetime
) -> bool:
    """Tell whether it can stay: not due, of this authority, and what is wanted."""
    try:
        held.verify_directly_issued_by(authority)
        found = {type(each.value): each.value for each in held.extensions}
    except (InvalidSignature, ValueError, TypeError):
        return False
    return (
        not due(held, now)
        and found.get(x509.ExtendedKeyUsage) == wanted.key_usage
        and found.get(x509.SubjectAlternativeName) == wanted.alternatives
    )


def _files(name: str, pair: Pair, uid: int) -> dict[str, TlsFile]:
    return {
        f"{name}.crt": TlsFile(pair.certificate_pem, _PUBLIC),
        f"{name}.key": TlsFile(pair.key_pem, _SECRET, uid),
    }
