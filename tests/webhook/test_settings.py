"""The settings of the webhook, and complaints about bad ones."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpushare.server.tls import TlsFiles
from gpushare.settings import Address
from webhook.bitfusion.resources import BitfusionRules
from webhook.rules.review import ReviewSettings
from webhook.settings import WebhookSettings

TLS = {"TLS_CERT": "/tls/tls.crt", "TLS_KEY": "/tls/tls.key"}


def read(more: Mapping[str, str], **environ: str) -> tuple[WebhookSettings, list[str]]:
    """Read settings by their short names, and some more by their whole ones."""
    short = {f"GPUSHARE_{key}": value for key, value in (TLS | environ).items()}
    return WebhookSettings.read(short | dict(more))


def test_all_but_the_certificate_may_be_left_out() -> None:
    settings, found = read({})
    default = WebhookSettings(tls_cert="/tls/tls.crt", tls_key="/tls/tls.key")
    assert (settings, found) == (default, [])
    assert settings.tls == TlsFiles("/tls/tls.crt", "/tls/tls.key", None)
    assert str(settings.listen) == "0.0.0.0:8443"
    assert str(settings.public_listen) == "0.0.0.0:8080"
    assert read({}, VOID="", SET_SCHEDULER="") == (default, [])


def test_each_setting_of_the_webhook_is_read() -> None:
    settings, found = read(
        {"TOTAL_GPU_MEMORY": "16000"},
        LISTEN="[::1]:1234",
        PUBLIC_LISTEN="10.0.0.1:1235",
        KUBECONFIG="/etc/config",
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
        rules=ReviewSettings(
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
    ("card_mib", "total_mb", "rules"),
    [
        ("", "", BitfusionRules()),
        ("", "16000", BitfusionRules(total_bytes=16_000_000_000)),
        ("16384", "", BitfusionRules(total_bytes=16384 << 20)),
        ("256", "16000", BitfusionRules(total_bytes=256 << 20)),
        ("", "269", BitfusionRules(total_bytes=269_000_000)),
        ("auto", "16000", BitfusionRules(auto=True)),
    ],
)
def test_the_size_of_a_bitfusion_card(
    card_mib: str, total_mb: str, rules: BitfusionRules
) -> None:
    """In MiB, or as the cluster has them; ours overrules Bitfusion's own name."""
    read_size = read({"TOTAL_GPU_MEMORY": total_mb}, BITFUSION_CARD_MIB=card_mib)
    assert read_size[0].rules == replace(ReviewSettings(), bitfusion=rules)
    assert read_size[1] == []


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("GPUSHARE_BITFUSION_CARD_MIB", "16Gi", "give a card's memory in MiB"),
        ("GPUSHARE_BITFUSION_CARD_MIB", "Auto", "or auto"),
        ("GPUSHARE_BITFUSION_CARD_MIB", "-1", "from 256 to 16777216"),
        ("GPUSHARE_BITFUSION_CARD_MIB", "255", "from 256"),
        ("GPUSHARE_BITFUSION_CARD_MIB", "16777217", "to 16777216"),
        ("GPUSHARE_BITFUSION_CARD_MIB", "9" * 5000, "is not valid"),
        ("TOTAL_GPU_MEMORY", "16000M", "give a card's memory in MB"),
        ("TOTAL_GPU_MEMORY", "0", "from 269"),
        ("TOTAL_GPU_MEMORY", "²", "in MB"),
        ("GPUSHARE_VOID", "yes", "use one of on, off"),
        ("GPUSHARE_ENV_FROM", "on", "use one of auto, allow, deny"),
        ("GPUSHARE_PUBLIC_LISTEN", "0.0.0.0:8443", "need different ports"),
        ("GPUSHARE_TLS_CERT", "", "is missing; "),
        ("GPUSHARE_TLS_KEY", "", "is missing; "),
        ("GPUSHARE_BITFUSION_STRIKT", "1", "did you mean GPUSHARE_BITFUSION_STRICT?"),
    ],
)
def test_what_will_not_do_stops_the_start(name: str, value: str, fix: str) -> None:
    """Rather than to deny every pod later on."""
    _, (complaint,) = read({name: value})
    assert complaint.startswith(name)
    assert fix in complaint
