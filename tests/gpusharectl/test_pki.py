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

from gpusharectl.pki import (
    EXTENDER,
    SCHEDULER,
    SERVER_NAME,
    Purpose,
    TlsFile,
    Wanted,
    due,
    not_after,
    plan,
    read_pair,
    scheduler_stamp,
)

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
DAY = timedelta(days=1)
AUTHORITY = {"ca.crt", "ca.key"}
SERVER = {"server.crt", "server.key"}
CLIENT = {"client.crt", "client.key"}
ALL = AUTHORITY | SERVER | CLIENT


def written(
    planned: Mapping[str, TlsFile], before: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    return {
        **(before or {}),
        **{name: file.content for name, file in planned.items()},
    }


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    return written(plan({}, NOW))


def certificate(files: Mapping[str, bytes], name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files[f"{name}.crt"])


def policy(files: Mapping[str, bytes], now: datetime) -> PolicyBuilder:
    return PolicyBuilder().store(Store([certificate(files, "ca")])).time(now)


def as_client(files: Mapping[str, bytes], name: str, now: datetime = NOW) -> None:
    # The web wants names in every certificate; kube-scheduler has none.
    nameless = ExtensionPolicy.webpki_defaults_ee().may_be_present(
        x509.SubjectAlternativeName, Criticality.AGNOSTIC, None
    )
    verifier = (
        policy(files, now)
        .extension_policies(
            ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=nameless
        )
        .build_client_verifier()
    )
    verifier.verify(certificate(files, name), [])


def as_server(
    files: Mapping[str, bytes], host: x509.GeneralName, now: datetime = NOW
) -> None:
    verifier = policy(files, now).build_server_verifier(host)  # type: ignore[arg-type]
    verifier.verify(certificate(files, "server"), [])


def test_from_nothing_come_three_pairs() -> None:
    """Keys are their owner's alone, and only the extender's is not root's."""
    planned = plan({}, NOW)
    assert {name: (file.mode, file.uid) for name, file in planned.items()} == {
        "ca.crt": (0o644, 0),
        "ca.key": (0o600, 0),
        "server.crt": (0o644, 0),
        "server.key": (0o600, 65532),
        "client.crt": (0o644, 0),
        "client.key": (0o600, 0),
    }
    for name in ("ca", "server", "client"):
        assert read_pair(written(planned), name)


@pytest.mark.parametrize("host", ["localhost", SERVER_NAME])
def test_the_server_is_known_by_its_names(
    files: Mapping[str, bytes], host: str
) -> None:
    """Under each a client that trusts the authority alone takes it."""
    as_server(files, x509.DNSName(host))
    with pytest.raises(VerificationError):
        as_server(files, x509.DNSName("example.org"))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_server_is_known_by_its_addresses(
    files: Mapping[str, bytes], host: str
) -> None:
    """Its loopback ones, and no other."""
    as_server(files, x509.IPAddress(ipaddress.ip_address(host)))
    with pytest.raises(VerificationError):
        as_server(files, x509.IPAddress(ipaddress.ip_address("10.0.0.1")))


def test_neither_side_can_stand_in_for_the_other(files: Mapping[str, bytes]) -> None:
    """What the extender holds does not let anybody bind."""
    as_client(files, "client")
    with pytest.raises(VerificationError):
        as_client(files, "server")


def test_another_hosts_client_is_nobody_here(files: Mapping[str, bytes]) -> None:
    """Authorities of the same name differ by their keys."""
    other = written(plan({}, NOW))
    stranger = {"ca.crt": files["ca.crt"], "client.crt": other["client.crt"]}
    with pytest.raises(VerificationError):
        as_client(stranger, "client")


def test_keys_are_for_one_thing(files: Mapping[str, bytes]) -> None:
    """The authority signs certificates, of no further authority; the others speak."""
    basic = certificate(files, "ca").extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert basic.critical
    assert basic.value == x509.BasicConstraints(ca=True, path_length=0)
    for name, signs in (("ca", True), ("server", False), ("client", False)):
        usage = (
            certificate(files, name)
            .extensions.get_extension_for_class(x509.KeyUsage)
            .value
        )
        assert (usage.key_cert_sign, usage.digital_signature) == (signs, not signs)


def test_they_end(files: Mapping[str, bytes]) -> None:
    """After a year and ten; nobody takes them later."""
    assert not_after(files["server.crt"]) == NOW + 365 * DAY
    assert not_after(files["client.crt"]) == NOW + 365 * DAY
    assert not_after(files["ca.crt"]) == NOW + 3652 * DAY
    as_client(files, "client", NOW + 364 * DAY)
    with pytest.raises(VerificationError):
        as_client(files, "client", NOW + 366 * DAY)


def test_what_is_no_certificate_has_no_end(files: Mapping[str, bytes]) -> None:
    """Unknown is not a date."""
    assert not_after(b"") is None
    assert not_after(files["client.key"]) is None


def test_a_second_call_changes_nothing(files: Mapping[str, bytes]) -> None:
    """While two thirds of the year have not passed."""
    assert plan(files, NOW) == {}
    assert plan(files, NOW + 243 * DAY) == {}


def test_renewal_keeps_the_authority(files: Mapping[str, bytes]) -> None:
    """Who trusts it goes on trusting what it signs anew."""
    later = NOW + 244 * DAY
    planned = plan(files, later)
    assert planned.keys() == SERVER | CLIENT
    renewed = written(planned, files)
    assert not_after(renewed["client.crt"]) == later + 365 * DAY
    as_client(renewed, "client", later)
    as_server(renewed, x509.DNSName("localhost"), later)
    assert renewed["client.key"] != files["client.key"]
    assert plan(renewed, later) == {}


def test_an_authority_that_ends_is_made_anew_with_all_it_signed(
    files: Mapping[str, bytes],
) -> None:
    """Long before its end, so that it outlives what it signs."""
    early, late = NOW + 2434 * DAY, NOW + 2436 * DAY
    assert plan(files, early).keys() == SERVER | CLIENT
    assert plan(files, late).keys() == ALL
    end = not_after(files["ca.crt"])
    assert end
    assert end > early + 365 * DAY


def test_one_that_is_not_valid_yet_is_due(files: Mapping[str, bytes]) -> None:
    """The clock was wrong when it was made; an hour's correction does no harm."""
    client = certificate(files, "client")
    assert not due(client, NOW - timedelta(minutes=59))
    assert due(client, NOW - timedelta(minutes=61))


@pytest.mark.parametrize("name", ["ca", "server", "client"])
@pytest.mark.parametrize("part", ["crt", "key"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "another"])
def test_what_is_broken_is_made_anew(
    files: Mapping[str, bytes], name: str, part: str, damage: str
) -> None:
    """And only that, but for the authority: with it, all that it signed."""
    file = f"{name}.{part}"
    broken = dict(files)
    if damage == "missing":
        del broken[file]
    elif damage == "empty":
        broken[file] = b""
    elif damage == "cut":
        broken[file] = files[file][:100]
    else:
        broken[file] = plan({}, NOW)[file].content
    planned = plan(broken, NOW)
    assert planned.keys() == (ALL if name == "ca" else {f"{name}.crt", f"{name}.key"})
    mended = written(planned, broken)
    assert plan(mended, NOW) == {}
    as_client(mended, "client")
    as_server(mended, x509.DNSName("localhost"))


def test_a_key_of_another_kind_is_made_anew(files: Mapping[str, bytes]) -> None:
    """With a password or of RSA it is none that we made."""
    pair = read_pair(files, "client")
    assert pair
    encrypted = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    of_rsa = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for key in (encrypted, of_rsa):
        assert plan({**files, "client.key": key}, NOW).keys() == CLIENT


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("server", "x", Purpose.SERVER, (*EXTENDER.hosts, "10.0.0.7"), 65532),
        Wanted("server", "x", Purpose.SERVER),
        Wanted("server", "x", Purpose.CLIENT, EXTENDER.hosts),
    ],
    ids=["more-hosts", "no-hosts", "another-purpose"],
)
def test_one_that_is_not_as_wanted_is_made_anew(
    files: Mapping[str, bytes], wanted: Wanted
) -> None:
    """As after an upgrade of ours that knows the server by one more name."""
    planned = plan(files, NOW, [wanted, SCHEDULER])
    assert planned.keys() == SERVER
    assert plan(written(planned, files), NOW, [wanted, SCHEDULER]) == {}


@pytest.mark.parametrize("count", range(7))
def test_an_interrupted_call_is_mended_by_the_next(
    files: Mapping[str, bytes], count: int
) -> None:
    """After any number of its files, whether all were new or only the signed ones."""
    for now in (NOW + 244 * DAY, NOW + 3000 * DAY):
        planned = plan(files, now)
        some = dict(list(planned.items())[:count])
        halfway = written(some, files)
        mended = written(plan(halfway, now), halfway)
        assert plan(mended, now) == {}
        as_client(mended, "client", now)
        as_server(mended, x509.DNSName("localhost"), now)


def test_kube_scheduler_starts_anew_for_its_own_certificate_alone(
    files: Mapping[str, bytes],
) -> None:
    """And for the authority; the extender's own is none of its business."""
    stamp = scheduler_stamp(files)
    for missing, anew in (("server", False), ("client", True), ("ca", True)):
        kept = {name: text for name, text in files.items() if missing not in name}
        planned = plan(kept, NOW)
        assert (scheduler_stamp(written(planned, kept)) != stamp) == anew


def test_the_stamp_is_one_line_and_can_be_taken_of_nothing() -> None:
    """It stands in an annotation, before there are files too."""
    assert len(scheduler_stamp({})) == 64
    assert scheduler_stamp({"ca.crt": b"x"}) != scheduler_stamp({"client.crt": b"x"})


def test_other_servers_have_theirs_by_the_same_rules() -> None:
    """Such as a webhook, which its Service's name is for."""
    hosts = ("webhook.kube-system.svc",)
    webhook = Wanted("webhook", "gpushare-webhook", Purpose.SERVER, hosts, uid=65532)
    planned = plan({}, NOW, [webhook])
    assert planned.keys() == AUTHORITY | {"webhook.crt", "webhook.key"}
    held = written(planned)
    verifier = policy(held, NOW).build_server_verifier(x509.DNSName(hosts[0]))
    verifier.verify(certificate(held, "webhook"), [])
    assert plan(held, NOW, [webhook]) == {}
