"""The extender's settings, and what an operator hears of bad ones."""

from dataclasses import asdict

import pytest

from extender.settings import ExtenderSettings
from gpushare.settings import Address

GOOD = {
    "GPUSHARE_LISTEN": "[::1]:1234",
    "GPUSHARE_PUBLIC_LISTEN": "10.0.0.1:1235",
    "GPUSHARE_TLS_CERT": "/etc/server.crt",
    "GPUSHARE_TLS_KEY": "/etc/server.key",
    "GPUSHARE_TLS_CLIENT_CA": "/etc/ca.crt",
    "GPUSHARE_KUBECONFIG": "/etc/config",
    "GPUSHARE_POLICY": "spread",
    "GPUSHARE_CARD_ORDER": "uuid",
    "GPUSHARE_THREADS": "2",
    "GPUSHARE_BIND_TIMEOUT_S": "0.5",
    "GPUSHARE_WAIT_FOR_BIND_S": "0",
    "GPUSHARE_WAIT_FOR_NEWS_S": "0.5",
    "GPUSHARE_PENDING_FOR_S": "7",
    "GPUSHARE_STALE_AFTER_S": "90",
    "GPUSHARE_UI": "on",
    "GPUSHARE_LOG_LEVEL": "DEBUG",
    "GPUSHARE_LOG_FORMAT": "text",
}


def complaints(**environ: str) -> list[str]:
    _, found = ExtenderSettings.read(
        {f"GPUSHARE_{key}": value for key, value in environ.items()}
    )
    return found


def test_an_empty_environment_gives_the_defaults() -> None:
    """Nothing has to be set, and empty variables count as not set."""
    assert ExtenderSettings.read({}) == (ExtenderSettings(), [])
    assert ExtenderSettings.read(dict.fromkeys(GOOD, "")) == (ExtenderSettings(), [])


def test_each_setting_is_read() -> None:
    """One variable for each field, and no field without."""
    settings, found = ExtenderSettings.read(GOOD)
    assert found == []
    assert asdict(settings) == {
        "listen": {"host": "[::1]", "port": 1234},
        "public_listen": {"host": "10.0.0.1", "port": 1235},
        "tls_cert": "/etc/server.crt",
        "tls_key": "/etc/server.key",
        "tls_client_ca": "/etc/ca.crt",
        "kubeconfig": "/etc/config",
        "policy": "spread",
        "card_order": "uuid",
        "threads": 2,
        "bind_timeout_s": 0.5,
        "wait_for_bind_s": 0.0,
        "wait_for_news_s": 0.5,
        "pending_for_s": 7.0,
        "stale_after_s": 90.0,
        "ui": True,
        "log_level": "DEBUG",
        "log_format": "text",
    }


def test_all_complaints_come_at_once() -> None:
    """Each names the variable and its fix, and the default stands in meanwhile."""
    bad = dict.fromkeys(GOOD, "nonsense")
    settings, found = ExtenderSettings.read(bad)
    named = {complaint.partition(":")[0] for complaint in found}
    paths = ("kubeconfig", "tls_cert", "tls_key", "tls_client_ca")
    assert named == bad.keys() - {f"GPUSHARE_{path.upper()}" for path in paths}
    assert len(found) == len(named)
    assert all("will not do" in complaint for complaint in found)
    assert settings == ExtenderSettings(**dict.fromkeys(paths, "nonsense"))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("POLICY", "first", "use one of first-fit, best-fit, spread, frag"),
        ("CARD_ORDER", "UUID", "use one of index, uuid"),
        ("THREADS", "1", "give a whole number from 2 to 256"),
        ("BIND_TIMEOUT_S", "10", "give a number of seconds from 0.1 to 9"),
        ("STALE_AFTER_S", "1", "give a number of seconds from 45 to 3600"),
        ("LOG_LEVEL", "info", "use one of DEBUG, INFO, WARNING, ERROR"),
        ("LISTEN", "39999", "give host:port, such as 127.0.0.1:39999"),
    ],
)
def test_a_complaint_says_what_would_do(name: str, value: str, fix: str) -> None:
    """The variable, the value and the remedy in one sentence."""
    assert complaints(**{name: value}) == [
        f"GPUSHARE_{name}: '{value}' will not do; {fix}"
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost"])
def test_the_verbs_listen_on_loopback(host: str) -> None:
    """By any of its names."""
    assert complaints(LISTEN=f"{host}:1") == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "[::]", "10.0.0.1", "[2001:db8::1]", "example.org"]
)
def test_the_verbs_listen_nowhere_else(host: str) -> None:
    """Whoever reaches them can bind pods; a name may be anybody's."""
    (complaint,) = complaints(LISTEN=f"{host}:1")
    assert complaint.startswith(f"GPUSHARE_LISTEN: {host}:1 is not on loopback")
    assert "GPUSHARE_PUBLIC_LISTEN" in complaint


@pytest.mark.parametrize(
    "environ",
    [
        {"LISTEN": "127.0.0.1:7", "PUBLIC_LISTEN": "10.0.0.1:7"},
        {"PUBLIC_LISTEN": "0.0.0.0:39999"},
        {"LISTEN": "127.0.0.1:39998"},
    ],
    ids=["both-given", "the-other-default", "the-other-way"],
)
def test_the_listeners_need_a_port_each(environ: dict[str, str]) -> None:
    """The port tells them apart, so that equal ones would open the verbs to all."""
    (complaint,) = complaints(**environ)
    assert complaint.startswith("GPUSHARE_PUBLIC_LISTEN: ")
    assert "a port each" in complaint


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POLICIES", "POLICY"),
        ("KUBE_CONFIG", "KUBECONFIG"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("BIND_TIMEOUT", "BIND_TIMEOUT_S"),
    ],
)
def test_a_misspelt_name_is_complained_of(name: str, meant: str) -> None:
    """Else it would be passed over in silence."""
    assert complaints(**{name: "x"}) == [
        f"GPUSHARE_{name} is no setting; did you mean GPUSHARE_{meant}?"
    ]


def test_other_variables_are_none_of_our_business() -> None:
    """Kubernetes itself sets some for a Service of our name."""
    assert complaints(SERVICE_HOST="10.0.0.1", PORT_39998_TCP="x") == []
    assert ExtenderSettings.read({"PATH": "/bin", "POLICY": "none"})[1] == []


def test_addresses_default_to_the_known_ports() -> None:
    """They stand in other programs' configuration too."""
    settings = ExtenderSettings()
    assert settings.listen == Address("127.0.0.1", 39999)
    assert settings.public_listen == Address("0.0.0.0", 39998)
