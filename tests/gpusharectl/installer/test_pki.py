"""Certificates of the extender, kube-scheduler and the webhook."""

import ipaddress
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from gpushare.kube.names import EXTENDER_SERVER_NAME
from gpusharectl.installer.pki import (
    CLIENT_SIDE,
    EXTENDER,
    SCHEDULER,
    SERVER_SIDE,
    TlsFile,
    WantedCert,
    is_renewal_due,
    issue_certificate,
    join_bundle,
    make_authority,
    plan_certificates,
    plan_webhook,
    read_pair,
    scheduler_stamp,
)

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
DAY = timedelta(days=1)
SERVER = {"server.crt", "server.key"}
CLIENT = {"client.crt", "client.key"}
ALL = {"ca.crt", "ca.key"} | SERVER | CLIENT
Files = Mapping[str, bytes]


def written(planned: Mapping[str, TlsFile], before: Files | None = None) -> Files:
    new = {name: file.content for name, file in planned.items()}
    return {**(before or {}), **new}


@pytest.fixture(scope="module")
def files() -> Files:
    return written(plan_certificates({}, NOW))


def certificate(files: Files, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files[f"{name}.crt"])


def end(files: Files, name: str) -> datetime:
    return certificate(files, name).not_valid_after_utc


def policy(files: Files, now: datetime) -> PolicyBuilder:
    return PolicyBuilder().store(Store([certificate(files, "ca")])).time(now)


def as_client(files: Files, name: str = "client", now: datetime = NOW) -> bool:
    # The web wants names in every certificate; kube-scheduler has none.
    nameless = ExtensionPolicy.webpki_defaults_ee().may_be_present(
        x509.SubjectAlternativeName, Criticality.AGNOSTIC, None
    )
    ca = ExtensionPolicy.webpki_defaults_ca()
    builder = policy(files, now).extension_policies(ca_policy=ca, ee_policy=nameless)
    try:
        builder.build_client_verifier().verify(certificate(files, name), [])
    except VerificationError:
        return False
    return True


def as_server(
    files: Files, host: str = "localhost", now: datetime = NOW, name: str = "server"
) -> bool:
    try:
        subject: x509.IPAddress | x509.DNSName
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    verifier = policy(files, now).build_server_verifier(subject)
    try:
        verifier.verify(certificate(files, name), [])
    except VerificationError:
        return False
    return True


def test_from_nothing_come_three_pairs() -> None:
    """Keys are their owner's alone, and only the extender's is not root's."""
    planned = plan_certificates({}, NOW)
    assert {name: (file.mode, file.uid) for name, file in planned.items()} == {
        "ca.crt": (0o644, 0),
        "ca.key": (0o600, 0),
        "server.crt": (0o644, 0),
        "server.key": (0o600, 65532),
        "client.crt": (0o644, 0),
        "client.key": (0o600, 0),
    }


def test_who_believes_whom(files: Files) -> None:
    for host in ("localhost", EXTENDER_SERVER_NAME, "127.0.0.1", "::1"):
        assert as_server(files, host)
    assert not as_server(files, "example.org")
    assert not as_server(files, "10.0.0.1")
    assert as_client(files)
    # What the extender holds does not let anybody bind.
    assert not as_client(files, "server")
    # Authorities of the same name differ by their keys.
    other = written(plan_certificates({}, NOW))
    assert not as_client({"ca.crt": files["ca.crt"], "client.crt": other["client.crt"]})


def test_keys_are_for_one_thing(files: Files) -> None:
    found = certificate(files, "ca").extensions
    basic = found.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert basic.value == x509.BasicConstraints(ca=True, path_length=0)
    for name, signs in (("ca", True), ("server", False), ("client", False)):
        found = certificate(files, name).extensions
        usage = found.get_extension_for_class(x509.KeyUsage).value
        assert (usage.key_cert_sign, usage.digital_signature) == (signs, not signs)


def test_they_end(files: Files) -> None:
    for name, days in (("server", 365), ("client", 365), ("ca", 3652)):
        assert end(files, name) == NOW + days * DAY
    assert as_client(files, now=NOW + 364 * DAY)
    assert not as_client(files, now=NOW + 366 * DAY)


def test_renewal_keeps_the_authority(files: Files) -> None:
    assert (
        plan_certificates(files, NOW) == plan_certificates(files, NOW + 243 * DAY) == {}
    )
    later = NOW + 244 * DAY
    planned = plan_certificates(files, later)
    assert planned.keys() == SERVER | CLIENT
    renewed = written(planned, files)
    assert end(renewed, "client") == later + 365 * DAY
    assert as_client(renewed, now=later)
    assert as_server(renewed, now=later)
    assert renewed["client.key"] != files["client.key"]


def test_an_authority_that_ends_is_made_anew_with_all_it_signed(files: Files) -> None:
    """Long before its end, so that it outlives what it signs."""
    early, late = NOW + 2434 * DAY, NOW + 2436 * DAY
    assert plan_certificates(files, early).keys() == SERVER | CLIENT
    assert plan_certificates(files, late).keys() == ALL
    assert end(files, "ca") > early + 365 * DAY


def test_one_that_is_not_valid_yet_is_due(files: Files) -> None:
    """The clock was wrong when it was made; an hour's correction does no harm."""
    client = certificate(files, "client")
    assert not is_renewal_due(client, NOW - timedelta(minutes=59))
    assert is_renewal_due(client, NOW - timedelta(minutes=61))


@pytest.mark.parametrize("name", ["ca", "server", "client"])
@pytest.mark.parametrize("part", ["crt", "key"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "another"])
def test_what_is_broken_is_made_anew(
    files: Files, name: str, part: str, damage: str
) -> None:
    """And only that, but for the authority: with it, all that it signed."""
    file = f"{name}.{part}"
    broken = {key: text for key, text in files.items() if key != file}
    if damage != "missing":
        other = plan_certificates({}, NOW)[file].content if damage == "another" else b""
        broken[file] = files[file][:100] if damage == "cut" else other
    planned = plan_certificates(broken, NOW)
    assert planned.keys() == (ALL if name == "ca" else {f"{name}.crt", f"{name}.key"})
    mended = written(planned, broken)
    assert plan_certificates(mended, NOW) == {}
    assert as_client(mended)
    assert as_server(mended)


def test_a_key_of_another_kind_is_made_anew(files: Files) -> None:
    pair = read_pair(files, "client")
    assert pair
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    secret = serialization.BestAvailableEncryption(b"secret")
    of_rsa = rsa.generate_private_key(65537, 2048)
    for key in (
        pair.key.private_bytes(*form, secret),
        of_rsa.private_bytes(*form, serialization.NoEncryption()),
    ):
        assert plan_certificates({**files, "client.key": key}, NOW).keys() == CLIENT


@pytest.mark.parametrize(
    "wanted",
    [
        WantedCert("server", "x", SERVER_SIDE, (*EXTENDER.hosts, "10.0.0.7"), 65532),
        WantedCert("server", "x", SERVER_SIDE),
        WantedCert("server", "x", CLIENT_SIDE, EXTENDER.hosts),
    ],
    ids=["more-hosts", "no-hosts", "another-purpose"],
)
def test_one_that_is_not_as_wanted_is_made_anew(
    files: Files, wanted: WantedCert
) -> None:
    planned = plan_certificates(files, NOW, [wanted, SCHEDULER])
    assert planned.keys() == SERVER
    assert plan_certificates(written(planned, files), NOW, [wanted, SCHEDULER]) == {}


@pytest.mark.parametrize("count", range(7))
def test_an_interrupted_call_is_mended_by_the_next(files: Files, count: int) -> None:
    for now in (NOW + 244 * DAY, NOW + 3000 * DAY):
        some = dict(list(plan_certificates(files, now).items())[:count])
        halfway = written(some, files)
        mended = written(plan_certificates(halfway, now), halfway)
        assert plan_certificates(mended, now) == {}
        assert as_client(mended, now=now)
        assert as_server(mended, now=now)


def test_kube_scheduler_starts_anew_for_its_own_certificate_alone(files: Files) -> None:
    """And for the authority; the extender's own is none of its business."""
    stamp = scheduler_stamp(files)
    for missing, anew in (("server", False), ("client", True), ("ca", True)):
        kept = {name: text for name, text in files.items() if missing not in name}
        planned = plan_certificates(kept, NOW)
        assert (scheduler_stamp(written(planned, kept)) != stamp) == anew
    assert len(scheduler_stamp({})) == 64


NAME = "gpushare-webhook.kube-system.svc"
WEBHOOK = {"ca.crt", "tls.crt", "tls.key"}


@pytest.fixture(scope="module")
def webhook() -> Files:
    return plan_webhook({}, NOW)


def test_webhook_is_good_for_the_services_name_alone(webhook: Files) -> None:
    assert set(webhook) == WEBHOOK
    later = NOW + 200 * DAY
    assert as_server(webhook, NAME, later, "tls")
    assert not as_server(webhook, "localhost", later, "tls")
    assert not as_server(webhook, NAME, NOW + 366 * DAY, "tls")


def test_nothing_of_the_webhooks_that_is_kept_can_sign(webhook: Files) -> None:
    """Of the authority there is the certificate alone."""
    key = serialization.load_pem_private_key(webhook["tls.key"], None).public_key()
    assert key == certificate(webhook, "tls").public_key()
    assert key != certificate(webhook, "ca").public_key()
    found = certificate(webhook, "tls").extensions
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("days", "stays"), [(0, True), (243, True), (244, False), (400, False), (-1, False)]
)
def test_when_the_webhooks_is_renewed(webhook: Files, days: int, stays: bool) -> None:
    made = plan_webhook(webhook, NOW + days * DAY)
    assert set(made) == (set() if stays else WEBHOOK)
    assert made.get("ca.crt") != webhook["ca.crt"]


@pytest.mark.parametrize("name", sorted(WEBHOOK))
@pytest.mark.parametrize("content", [None, b"", b"x", b"\xff"])
def test_what_is_broken_of_the_webhook_is_made_anew_as_a_whole(
    webhook: Files, name: str, content: bytes | None
) -> None:
    broken = {key: text for key, text in webhook.items() if key != name}
    made = plan_webhook(broken | ({name: content} if content is not None else {}), NOW)
    assert set(made) == WEBHOOK
    assert as_server(made, NAME, NOW + DAY, "tls")


@pytest.mark.parametrize(
    "wanted",
    [
        WantedCert("tls", "x", CLIENT_SIDE, (NAME,)),
        WantedCert("tls", "x", SERVER_SIDE, ("gpushare-webhook.default.svc",)),
        WantedCert("tls", "x", SERVER_SIDE),
        None,
    ],
)
def test_a_webhooks_for_something_else_is_made_anew(
    webhook: Files, wanted: WantedCert | None
) -> None:
    authority = make_authority(NOW)
    other = {**webhook, "ca.crt": authority.certificate_pem}
    if wanted:
        pair = issue_certificate(authority, wanted, NOW)
        other |= {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
    assert set(plan_webhook(other, NOW)) == WEBHOOK


def test_a_bundle_has_each_once_and_the_newest_first() -> None:
    one, two = (make_authority(NOW).certificate_pem for _ in range(2))
    assert join_bundle(one, two, NOW) == one + two
    assert join_bundle(one, one + b"\n" + two + two, NOW) == one + two
    old = make_authority(NOW - 4000 * DAY).certificate_pem
    for others in (b"", old, b"what is this", one.replace(b"M", b"!")):
        assert join_bundle(one, others, NOW) == one
