"""The webhook's settings, and what an operator hears of bad ones."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from extender.bitfusion.translate import BitfusionRules
from extender.server.tls import TlsFiles
from extender.settings import WebhookSettings
from extender.webhook.rules import Rules
from gpushare.settings import Address

TLS = {"TLS_CERT": "/tls/tls.crt", "TLS_KEY": "/tls/tls.key"}


def read(more: Mapping[str, str], **environ: str) -> tuple[WebhookSettings, list[str]]:
    """Read settings by their short names, and some more by their whole ones."""
    short = {f"GPUSHARE_{key}": value for key, value in (TLS | environ).items()}
    return WebhookSettings.read(short | dict(more))


def test_all_but_the_certificate_may_be_left_out() -> None:
    """Empty variables count as not set."""
    settings, found = read({})
    default = WebhookSettings(tls_cert="/tls/tls.crt", tls_key="/tls/tls.key")
    assert (settings, found) == (default, [])
    assert settings.tls == TlsFiles("/tls/tls.crt", "/tls/tls.key", None)
    assert str(settings.listen) == "0.0.0.0:8443"
    assert str(settings.public_listen) == "0.0.0.0:8080"
    assert read({}, VOID="", THREADS="", SET_SCHEDULER="") == (default, [])


def test_each_setting_is_read() -> None:
    """One variable for each field, and no field without."""
    settings, found = read(
        {"TOTAL_GPU_MEMORY": "16000"},
        LISTEN="[::1]:1234",
        PUBLIC_LISTEN="10.0.0.1:1235",
        KUBECONFIG="/etc/config",
        THREADS="4",
        VOID="on",
        SET_SCHEDULER="vcuda",
        SET_RUNTIME_CLASS="gpu",
        ENV_FROM="deny",
        QUOTAS="on",
        CARD_CLASSES="gold, silver,",
        BITFUSION_SHELL="/bin/sh",
        BITFUSION_STRICT="on",
        BITFUSION_QUOTA="on",
        LOG_LEVEL="DEBUG",
        LOG_FORMAT="text",
    )
    assert found == []
    assert settings == WebhookSettings(
        listen=Address("[::1]", 1234),
        public_listen=Address("10.0.0.1", 1235),
        tls_cert="/tls/tls.crt",
        tls_key="/tls/tls.key",
        kubeconfig="/etc/config",
        threads=4,
        rules=Rules(
            void=True,
            set_scheduler="vcuda",
            set_runtime_class="gpu",
            env_from="deny",
            quotas=True,
            runtime_classes=frozenset({"gold", "silver"}),
            bitfusion=BitfusionRules(
                total_bytes=16_000_000_000, shell="/bin/sh", strict=True, quota=True
            ),
        ),
        log_level="DEBUG",
        log_format="text",
    )


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("auto", BitfusionRules(auto=True)),
        ("15258", BitfusionRules(total_bytes=15258 << 20)),
        ("", BitfusionRules()),
    ],
)
def test_the_size_of_a_bitfusion_card(text: str, rules: BitfusionRules) -> None:
    """In MiB, or as the cluster has them; ours goes before Bitfusion's own name."""
    settings, found = read({}, BITFUSION_CARD_MIB=text)
    assert (settings.rules, found) == (replace(Rules(), bitfusion=rules), [])
    if text:
        other, _ = read({"TOTAL_GPU_MEMORY": "1"}, BITFUSION_CARD_MIB=text)
        assert other.rules == settings.rules


@pytest.mark.parametrize("name", ["BITFUSION_CARD_MIB", "TOTAL_GPU_MEMORY"])
def test_a_size_that_is_no_number_stops_the_start(name: str) -> None:
    """Rather than to deny every pod later on."""
    whole = name if name == "TOTAL_GPU_MEMORY" else f"GPUSHARE_{name}"
    _, (complaint,) = read({whole: "16000 MB"})
    assert whole in complaint
    assert "16000 MB" in complaint


@pytest.mark.parametrize("name", TLS)
def test_there_is_no_webhook_without_a_certificate(name: str) -> None:
    """The API server speaks to none."""
    _, (complaint,) = read({}, **{name: ""})
    assert complaint.startswith(f"GPUSHARE_{name}: is missing; ")


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("VOID", "yes", "use one of on, off"),
        ("BITFUSION_STRICT", "1", "use one of on, off"),
        ("ENV_FROM", "on", "use one of auto, allow, deny"),
        ("THREADS", "1", "from 2 to 256"),
        ("LISTEN", "8443", "give host:port"),
        ("PUBLIC_LISTEN", "0.0.0.0:8443", "need a port each"),
        ("LOG_LEVEL", "LOUD", "use one of"),
    ],
)
def test_what_will_not_do(name: str, value: str, fix: str) -> None:
    """Named, with what would."""
    _, (complaint,) = read({}, **{name: value})
    assert complaint.startswith(f"GPUSHARE_{name}: ")
    assert fix in complaint


def test_a_misspelt_setting() -> None:
    """It would be off, and nobody would know."""
    _, (complaint,) = read({}, BITFUSION_STRIKT="on")
    assert complaint == (
        "GPUSHARE_BITFUSION_STRIKT is no setting; "
        "did you mean GPUSHARE_BITFUSION_STRICT?"
    )
