"""The webhook's settings: GPUSHARE_… in its environment, read once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from extender.admission import Rules
from extender.bitfusion import BitfusionRules, CardTotal, total_of
from extender.forbidden import ENV_FROM
from extender.tls import TlsFiles
from gpushare.kube.names import WEBHOOK_PORT, WEBHOOK_PUBLIC_PORT
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.settings import Address, Reading

TOTAL = "TOTAL_GPU_MEMORY"
"""In MB, under the name that Bitfusion's own webhook had for it."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Each with its default; docs/webhook.md lists them for operators."""

    listen: Address = Address("0.0.0.0", WEBHOOK_PORT)
    """Reviews, over TLS, for the API server."""
    public_listen: Address = Address("0.0.0.0", WEBHOOK_PUBLIC_PORT)
    """Health, readiness and metrics, read-only, for probes and Prometheus."""
    tls_cert: str = ""
    """Path of the server's certificate; the API server talks to no webhook without."""
    tls_key: str = ""
    kubeconfig: str | None = None
    """Path; the pod's own service account where none is given."""
    threads: int = 16
    """Reviews answered at a time; none of them waits for anything."""
    rules: Rules = field(default_factory=Rules)
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; the complaints must be empty before anything starts."""
        env = Reading(environ)
        default = cls()
        settings = cls(
            listen=env.address("LISTEN", default.listen),
            public_listen=env.address("PUBLIC_LISTEN", default.public_listen),
            tls_cert=_file(env, "TLS_CERT"),
            tls_key=_file(env, "TLS_KEY"),
            kubeconfig=env.text("KUBECONFIG"),
            threads=env.whole("THREADS", default.threads, least=2, most=256),
            rules=_rules(env),
            log_level=env.one_of("LOG_LEVEL", LOG_LEVELS, default.log_level),
            log_format=env.one_of("LOG_FORMAT", LOG_FORMATS, default.log_format),
        )
        if settings.listen.port == settings.public_listen.port:
            env.complain(
                "PUBLIC_LISTEN",
                f"{settings.public_listen} has the port of GPUSHARE_LISTEN; "
                "the two listeners need a port each",
            )
        env.misspelt()
        return settings, env.complaints

    @property
    def tls(self) -> TlsFiles:
        """The files for TLS; clients need no certificate."""
        return TlsFiles(self.tls_cert, self.tls_key)


def _rules(env: Reading) -> Rules:
    return Rules(
        void=env.switch("VOID", default=False),
        set_scheduler=env.text("SET_SCHEDULER") or "",
        set_runtime_class=env.text("SET_RUNTIME_CLASS") or "",
        env_from=env.one_of("ENV_FROM", ENV_FROM, "auto"),
        runtime_classes=_names(env, "CARD_CLASSES"),
        quotas=env.switch("QUOTAS", default=False),
        bitfusion=_bitfusion(env),
    )


def _bitfusion(env: Reading) -> BitfusionRules:
    total = total_of(env.text("BITFUSION_CARD_MIB"), env.environ.get(TOTAL))
    if isinstance(total, str):
        env.complaints.append(total)
        total = CardTotal()
    default = BitfusionRules()
    return BitfusionRules(
        total_bytes=total.total_bytes,
        auto=total.auto,
        shell=env.text("BITFUSION_SHELL") or default.shell,
        strict=env.switch("BITFUSION_STRICT", default=False),
        quota=env.switch("BITFUSION_QUOTA", default=False),
    )


def _names(env: Reading, name: str) -> frozenset[str]:
    """Read names with commas between them."""
    return frozenset(filter(None, map(str.strip, (env.text(name) or "").split(","))))


def _file(env: Reading, name: str) -> str:
    found = env.text(name)
    if not found:
        env.complain(name, "is missing; the API server calls a webhook over TLS only")
    return found or ""
