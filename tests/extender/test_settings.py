"""The settings of the extender, and complaints about bad ones."""

from dataclasses import asdict

import pytest

from extender.settings import ExtenderSettings
from gpushare.settings import Address

GOOD = {
    f"GPUSHARE_{name}": value
    for name, value in {
        "LISTEN": "[::1]:1234",
        "PUBLIC_LISTEN": "10.0.0.1:1235",
        "TLS_CERT": "/etc/server.crt",
        "TLS_KEY": "/etc/server.key",
        "TLS_CLIENT_CA": "/etc/ca.crt",
        "CLAIMS_LISTEN": "127.0.0.1:1236",
        "CLAIMS_TLS_CERT": "/etc/claims.crt",
        "CLAIMS_TLS_KEY": "/etc/claims.key",
        "CLAIMS_TLS_CLIENT_CA": "/etc/claims-ca.crt",
        "KUBECONFIG": "/etc/config",
        "POLICY": "spread",
        "CARD_ORDER": "uuid",
        "THREADS": "2",
        "BIND_TIMEOUT_S": "0.5",
        "WAIT_FOR_BIND_S": "0",
        "WAIT_FOR_NEWS_S": "0.5",
        "PENDING_FOR_S": "7",
        "STALE_AFTER_S": "90",
        "UI": "on",
        "LOG_LEVEL": "DEBUG",
        "LOG_FORMAT": "text",
    }.items()
}


def complaints(**environ: str) -> list[str]:
    _, found = ExtenderSettings.read(
        {f"GPUSHARE_{key}": value for key, value in environ.items()}
    )
    return found


def test_an_empty_environment_gives_the_defaults() -> None:
    """Empty variables count as not set; Kubernetes sets some of a Service's name."""
    theirs = {"GPUSHARE_SERVICE_HOST": "10.0.0.1", "GPUSHARE_PORT_39998_TCP": "x"}
    assert ExtenderSettings.read(theirs | {"POLICY": "x"}) == (ExtenderSettings(), [])
    assert ExtenderSettings.read(dict.fromkeys(GOOD, "")) == (ExtenderSettings(), [])
    assert str(ExtenderSettings().listen) == "127.0.0.1:39999"
    assert str(ExtenderSettings().public_listen) == "0.0.0.0:39998"


def test_each_setting_of_the_extender_is_read() -> None:
    """One variable for each field, and no field without."""
    settings, found = ExtenderSettings.read(GOOD)
    assert found == []
    fields = asdict(settings)
    for name in ("listen", "public_listen", "claims_listen"):
        fields[name] = f"{fields[name]['host']}:{fields[name]['port']}"
    fields["ui"] = "on" if fields["ui"] else "off"
    assert {f"GPUSHARE_{name.upper()}" for name in fields} == GOOD.keys()
    for name, value in fields.items():
        given = GOOD[f"GPUSHARE_{name.upper()}"]
        assert value == (float(given) if isinstance(value, float | int) else given)


def test_all_complaints_come_at_once() -> None:
    bad = dict.fromkeys(GOOD, "nonsense")
    settings, found = ExtenderSettings.read(bad)
    named = {complaint.partition(":")[0] for complaint in found}
    files = ("tls_cert", "tls_key", "tls_client_ca")
    paths = ("kubeconfig", *files, *(f"claims_{name}" for name in files))
    assert named == bad.keys() - {f"GPUSHARE_{path.upper()}" for path in paths}
    assert len(found) == len(named)
    assert all("is not valid" in complaint for complaint in found)
    listen = Address("127.0.0.1", 39996)
    given = dict.fromkeys(paths, "nonsense")
    assert settings == ExtenderSettings(claims_listen=listen, **given)


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("POLICY", "first", "use one of first-fit, best-fit, spread, frag"),
        ("BIND_TIMEOUT_S", "10", "give a number of seconds from 0.1 to 9"),
        ("STALE_AFTER_S", "1", "give a number of seconds from 45 to 3600"),
    ],
)
def test_a_complaint_says_what_would_do(name: str, value: str, fix: str) -> None:
    """A misspelt name is told too, or it would be passed over in silence."""
    assert complaints(**{name: value, "LOGLEVEL": "x"}) == [
        f"GPUSHARE_{name}: '{value}' is not valid; {fix}",
        "GPUSHARE_LOGLEVEL is not a setting; did you mean GPUSHARE_LOG_LEVEL?",
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[2001:db8::1]", "example.org"])
def test_the_verbs_listen_beside_loopback_with_tls_only(host: str) -> None:
    """Whoever reaches them can bind pods; a name may be anybody's."""
    for local in ("127.0.0.1", "127.8.9.1", "[::1]", "localhost"):
        assert complaints(LISTEN=f"{local}:1") == []
    (complaint,) = complaints(LISTEN=f"{host}:1")
    assert complaint.startswith(f"GPUSHARE_LISTEN: {host}:1 is not on loopback")
    assert "GPUSHARE_PUBLIC_LISTEN" in complaint
    assert complaints(LISTEN=f"{host}:1", **MUTUAL) == []
    assert len(complaints(LISTEN=f"{host}:1", TLS_CERT="/a", TLS_KEY="/b")) == 2


def test_settings_give_all_files_or_none() -> None:
    for name in MUTUAL:
        others = {key: path for key, path in MUTUAL.items() if key != name}
        needs = " and ".join(f"GPUSHARE_{key}" for key in others)
        assert complaints(**others) == [
            f"GPUSHARE_{name}: is missing; TLS needs it together with {needs}"
        ]
        assert len(complaints(**{name: "/x"})) == 2


CLAIMS = {"CLAIMS_TLS_CERT": "/a", "CLAIMS_TLS_KEY": "/b"}


def test_there_is_no_listener_for_claims_unless_it_is_set() -> None:
    """Off by default; files without it are a mistake."""
    assert ExtenderSettings().claims is None
    for name in (*CLAIMS, "CLAIMS_TLS_CLIENT_CA"):
        (complaint,) = complaints(**{name: "/x"})
        assert complaint.startswith(f"GPUSHARE_{name}: has no listener")


def test_claims_are_reviewed_over_tls_on_loopback() -> None:
    """Elsewhere it wants a client's certificate: who reaches it can reserve cards."""
    assert complaints(CLAIMS_LISTEN="127.0.0.1:7", **CLAIMS) == []
    for name in CLAIMS:
        others = {key: path for key, path in CLAIMS.items() if key != name}
        (complaint,) = complaints(CLAIMS_LISTEN="127.0.0.1:7", **others)
        assert complaint.startswith(f"GPUSHARE_{name}: is missing")
    (complaint,) = complaints(CLAIMS_LISTEN="0.0.0.0:7", **CLAIMS)
    assert "can reserve cards" in complaint
    mutual = CLAIMS | {"CLAIMS_TLS_CLIENT_CA": "/c"}
    assert complaints(CLAIMS_LISTEN="0.0.0.0:7", **mutual) == []


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("PUBLIC_LISTEN", "10.0.0.1:7", "different ports"),
        ("PUBLIC_LISTEN", "0.0.0.0:7", "different ports"),
        ("CLAIMS_LISTEN", "127.0.0.1:39998", "each needs its own"),
        ("CLAIMS_LISTEN", "127.0.0.1:7", "each needs its own"),
    ],
)
def test_the_listeners_need_a_port_each(setting: str, value: str, told: str) -> None:
    """The port tells them apart, so that equal ones would open the verbs to all."""
    claims = CLAIMS if setting == "CLAIMS_LISTEN" else {}
    (complaint,) = complaints(LISTEN="127.0.0.1:7", **{setting: value}, **claims)
    assert complaint.startswith(f"GPUSHARE_{setting}: ")
    assert told in complaint


TLS = {"TLS_CERT": "/tls/tls.crt", "TLS_KEY": "/tls/tls.key"}
MUTUAL = TLS | {"TLS_CLIENT_CA": "/tls/ca.crt"}
