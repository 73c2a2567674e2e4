"""The webhook's certificate: what is made, when, and whom the API server believes."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from gpusharectl.pki import Purpose, Wanted, bundle, issue, make_authority, plan_webhook

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
DAY = timedelta(days=1)
NAME = "gpushare-webhook.kube-system.svc"
NAMES = {"ca.crt", "tls.crt", "tls.key"}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(plan_webhook({}, NOW))


def certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def believes(authorities: bytes, leaf: bytes, name: str, now: datetime) -> bool:
    store = Store(x509.load_pem_x509_certificates(authorities))
    verifier = PolicyBuilder().store(store).time(now)
    try:
        server = verifier.build_server_verifier(x509.DNSName(name))
        server.verify(certificate(leaf), [])
    except VerificationError:
        return False
    return True


def test_it_is_good_for_the_services_name_alone(files: dict[str, bytes]) -> None:
    assert set(files) == NAMES
    later = NOW + 200 * DAY
    assert believes(files["ca.crt"], files["tls.crt"], NAME, later)
    assert not believes(files["ca.crt"], files["tls.crt"], "localhost", later)
    assert not believes(files["ca.crt"], files["tls.crt"], NAME, NOW + 366 * DAY)


def test_nothing_that_is_kept_can_sign(files: dict[str, bytes]) -> None:
    """Of the authority there is the certificate alone."""
    authority = certificate(files["ca.crt"]).public_key()
    key = serialization.load_pem_private_key(files["tls.key"], None)
    assert key.public_key() == certificate(files["tls.crt"]).public_key()
    assert key.public_key() != authority
    found = certificate(files["tls.crt"]).extensions
    constraints = found.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca


@pytest.mark.parametrize(
    ("days", "stays"), [(0, True), (243, True), (244, False), (400, False), (-1, False)]
)
def test_when_it_is_renewed(files: dict[str, bytes], days: int, stays: bool) -> None:
    """With less than a third of its year left, or with a clock that was wrong."""
    made = plan_webhook(files, NOW + days * DAY)
    assert (made == {}) == stays
    if not stays:
        assert set(made) == NAMES
        assert made["ca.crt"] != files["ca.crt"]


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("content", [None, b"", b"x", b"\xff"])
def test_what_is_broken_is_made_anew_as_a_whole(
    files: dict[str, bytes], name: str, content: bytes | None
) -> None:
    spoilt = {key: text for key, text in files.items() if key != name}
    if content is not None:
        spoilt[name] = content
    made = plan_webhook(spoilt, NOW)
    assert set(made) == NAMES
    assert believes(made["ca.crt"], made["tls.crt"], NAME, NOW + DAY)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("tls", "x", Purpose.CLIENT, (NAME,)),
        Wanted("tls", "x", Purpose.SERVER, ("gpushare-webhook.default.svc",)),
        Wanted("tls", "x", Purpose.SERVER),
    ],
)
def test_one_for_something_else_is_made_anew(wanted: Wanted) -> None:
    authority = make_authority(NOW)
    pair = issue(authority, wanted, NOW)
    files = {
        "ca.crt": authority.certificate_pem,
        "tls.crt": pair.certificate_pem,
        "tls.key": pair.key_pem,
    }
    assert set(plan_webhook(files, NOW)) == NAMES


def test_one_of_another_authority_is_made_anew(files: dict[str, bytes]) -> None:
    other = {**files, "ca.crt": make_authority(NOW).certificate_pem}
    assert set(plan_webhook(other, NOW)) == NAMES


def test_a_bundle_has_each_once_and_the_newest_first() -> None:
    one, two = (make_authority(NOW).certificate_pem for _ in range(2))
    assert bundle(one, two, NOW) == one + two
    assert bundle(one, one + b"\n" + two + two, NOW) == one + two
    assert bundle(one, b"", NOW) == one


def test_a_bundle_has_no_expired_one_and_nothing_unreadable() -> None:
    old = make_authority(NOW - 4000 * DAY).certificate_pem
    new = make_authority(NOW).certificate_pem
    assert bundle(new, old, NOW) == new
    assert bundle(new, b"what is this", NOW) == new
    assert bundle(new, new.replace(b"M", b"!"), NOW) == new
