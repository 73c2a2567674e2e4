"""Read the webhook's settings: GPUSHARE_… in its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from gpushare.domain.model import UNIT_MIB
from gpushare.domain.quantity import is_plain_number
from gpushare.kube.names import WEBHOOK_PORT, WEBHOOK_PUBLIC_PORT
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.server.start import check_ports
from gpushare.server.tls import TlsFiles
from gpushare.settings import PREFIX, Address, Reading
from webhook.bitfusion.resources import MB, MIB, BitfusionRules
from webhook.rules.review import ReviewSettings
from webhook.rules.validate import ENV_FROM

_AUTO = "auto"
_MOST_BYTES = 1 << 44
TOTAL = "TOTAL_GPU_MEMORY"
"""In MB, with the name that Bitfusion's own webhook used."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The webhook's settings with their defaults, as in docs/webhook.md."""

    listen: Address = Address("0.0.0.0", WEBHOOK_PORT)
    """Reviews, over TLS, for the API server."""
    public_listen: Address = Address("0.0.0.0", WEBHOOK_PUBLIC_PORT)
    """Health, readiness and metrics, read-only, for probes and Prometheus."""
    tls_cert: str = ""
    """Path of the server's certificate, which the API server requires."""
    tls_key: str = ""
    kubeconfig: str | None = None
    """Path; by default the pod's service account is used."""
    rules: ReviewSettings = field(default_factory=ReviewSettings)
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; if there are complaints, nothing may start."""
        env = Reading(environ)
        default = cls()
        settings = cls(
            listen=env.address("LISTEN", default.listen),
            public_listen=env.address("PUBLIC_LISTEN", default.public_listen),
            tls_cert=_file(env, "TLS_CERT"),
            tls_key=_file(env, "TLS_KEY"),
            kubeconfig=env.text("KUBECONFIG"),
            rules=_rules(env),
            log_level=env.one_of("LOG_LEVEL", LOG_LEVELS, default.log_level),
            log_format=env.one_of("LOG_FORMAT", LOG_FORMATS, default.log_format),
        )
        check_ports(env, settings.listen, settings.public_listen)
        return settings, env.complaints

    @property
    def tls(self) -> TlsFiles:
        """The files for TLS; clients need no certificate."""
        return TlsFiles(self.tls_cert, self.tls_key)


def _rules(env: Reading) -> ReviewSettings:
    classes = (env.text("CARD_CLASSES") or "").split(",")
    return ReviewSettings(
        void=env.switch("VOID", default=False),
        set_scheduler=env.text("SET_SCHEDULER") or "",
        set_runtime_class=env.text("SET_RUNTIME_CLASS") or "",
        env_from=env.one_of("ENV_FROM", ENV_FROM, "auto"),
        runtime_classes=frozenset(filter(None, map(str.strip, classes))),
        quotas=env.switch("QUOTAS", default=False),
        bitfusion=_bitfusion(env),
    )


def _bitfusion(env: Reading) -> BitfusionRules:
    default = BitfusionRules()
    card_mib, total_mb = env.text("BITFUSION_CARD_MIB"), env.environ.get(TOTAL)
    total_bytes = None
    if card_mib and card_mib != _AUTO:
        fix = "give a card's memory in MiB, such as 16384, or auto"
        name = f"{PREFIX}BITFUSION_CARD_MIB"
        total_bytes = _card_bytes(env, name, card_mib, MIB, fix)
    elif total_mb and not card_mib:
        fix = "give a card's memory in MB (1,000,000 bytes), such as 16000"
        total_bytes = _card_bytes(env, TOTAL, total_mb, MB, fix)
    return BitfusionRules(
        total_bytes=total_bytes,
        auto=card_mib == _AUTO,
        shell=env.text("BITFUSION_SHELL") or default.shell,
        strict=env.switch("BITFUSION_STRICT", default=False),
        quota=env.switch("BITFUSION_QUOTA", default=False),
    )


def _card_bytes(env: Reading, name: str, text: str, unit: int, fix: str) -> int | None:
    total = int(text) * unit if is_plain_number(text) else 0
    if UNIT_MIB * MIB <= total <= _MOST_BYTES:
        return total
    bounds = f"from {-(-UNIT_MIB * MIB // unit)} to {_MOST_BYTES // unit}"
    env.complaints.append(f"{name}: {text!r} is not valid; {fix}, {bounds}")
    return None


def _file(env: Reading, name: str) -> str:
    path = env.text(name)
    if not path:
        env.complain(name, "is missing; the API server calls a webhook over TLS only")
    return path or ""
