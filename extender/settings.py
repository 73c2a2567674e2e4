"""The extender's settings: GPUSHARE_… in its environment, read once.

The webhook's settings: GPUSHARE_… in its environment, read once.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from extender.bitfusion.translate import BitfusionRules, CardTotal, total_of
from extender.server.tls import SETTINGS as TLS_SETTINGS
from extender.server.tls import TlsFiles
from extender.webhook.rules import Rules
from extender.webhook.validate import ENV_FROM
from gpushare.domain.policies import CARD_ORDERS, DEFAULT_POLICY, POLICIES, CardOrder
from gpushare.kube.names import (
    EXTENDER_PORT,
    EXTENDER_PUBLIC_PORT,
    WEBHOOK_PORT,
    WEBHOOK_PUBLIC_PORT,
)
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.settings import PREFIX, Address, Reading


@dataclass(frozen=True)
class ExtenderSettings:
    """Each with its default; docs/operations.md lists them for operators."""

    listen: Address = Address("127.0.0.1", EXTENDER_PORT)
    """Scheduler verbs and /snapshot; loopback only, since whoever reaches it binds,
    unless TLS lets in nobody without a certificate."""
    public_listen: Address = Address("0.0.0.0", EXTENDER_PUBLIC_PORT)
    """Health, readiness and metrics, read-only, for probes and Prometheus."""
    tls_cert: str | None = None
    """Path of the server's certificate; with the next two, mutual TLS for the verbs."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """Path of the authority whose clients may call the verbs."""
    kubeconfig: str | None = None
    """Path; the pod's own service account where none is given."""
    policy: str = DEFAULT_POLICY
    """For pods that name none."""
    card_order: CardOrder = "index"
    """Which card counts as first: by its index on the node, or by its UUID."""
    threads: int = 16
    """Requests answered at a time; a bind waits for the API server in one of them."""
    bind_timeout_s: float = 4.0
    """Under kube-scheduler's lease duration less its renew deadline (15 - 10 s), so
    that a deposed leader's write cannot come late."""
    wait_for_bind_s: float = 0.02
    """How long a filter waits for the bind of the pod before; 0 for never."""
    wait_for_news_s: float = 0.02
    """How long a filter that fits nowhere waits for our watch to catch up; 0 for never.
    In all never more than a fifth of the time."""
    pending_for_s: float = 5.0
    """How long a pod let through by filter counts before its bind comes."""
    stale_after_s: float = 60.0
    """Silence of the API server after which the extender is not ready."""
    ui: bool = False
    """Whether browsers get a page, at /ui beside the verbs."""
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; the complaints must be empty before anything starts."""
        env = Reading(environ)
        settings = cls(
            listen=env.address("LISTEN", cls.listen),
            public_listen=env.address("PUBLIC_LISTEN", cls.public_listen),
            tls_cert=env.text("TLS_CERT"),
            tls_key=env.text("TLS_KEY"),
            tls_client_ca=env.text("TLS_CLIENT_CA"),
            kubeconfig=env.text("KUBECONFIG"),
            policy=env.one_of("POLICY", tuple(POLICIES), cls.policy),
            card_order=env.one_of("CARD_ORDER", CARD_ORDERS, cls.card_order),
            threads=env.whole("THREADS", cls.threads, least=2, most=256),
            bind_timeout_s=env.seconds(
                "BIND_TIMEOUT_S", cls.bind_timeout_s, least=0.1, most=9.0
            ),
            wait_for_bind_s=env.seconds(
                "WAIT_FOR_BIND_S", cls.wait_for_bind_s, least=0, most=1
            ),
            wait_for_news_s=env.seconds(
                "WAIT_FOR_NEWS_S", cls.wait_for_news_s, least=0, most=1
            ),
            pending_for_s=env.seconds(
                "PENDING_FOR_S", cls.pending_for_s, least=0.1, most=600
            ),
            stale_after_s=env.seconds(
                "STALE_AFTER_S", cls.stale_after_s, least=45, most=3600
            ),
            ui=env.switch("UI", default=cls.ui),
            log_level=env.one_of("LOG_LEVEL", LOG_LEVELS, cls.log_level),
            log_format=env.one_of("LOG_FORMAT", LOG_FORMATS, cls.log_format),
        )
        settings._check(env)
        return settings, env.complaints

    @property
    def tls(self) -> TlsFiles | None:
        """The files for mutual TLS; None for plain HTTP."""
        if self.tls_cert and self.tls_key and self.tls_client_ca:
            return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)
        return None

    def _check(self, env: Reading) -> None:
        self._check_tls(env)
        if not _is_loopback(self.listen.host) and self.tls is None:
            env.complain(
                "LISTEN",
                f"{self.listen} is not on loopback, and whoever reaches it can bind "
                "pods; use 127.0.0.1, and GPUSHARE_PUBLIC_LISTEN for metrics, or let "
                "in only who has a certificate, by GPUSHARE_TLS_CLIENT_CA",
            )
        if self.listen.port == self.public_listen.port:
            env.complain(
                "PUBLIC_LISTEN",
                f"{self.public_listen} has the port of GPUSHARE_LISTEN; "
                "the two listeners need a port each",
            )
        env.misspelt()

    def _check_tls(self, env: Reading) -> None:
        given = (self.tls_cert, self.tls_key, self.tls_client_ca)
        if not any(given):
            return
        for name, path in zip(TLS_SETTINGS, given, strict=True):
            if not path:
                others = (PREFIX + other for other in TLS_SETTINGS if other != name)
                fix = "TLS needs it beside " + " and ".join(others)
                env.complain(name, f"is missing; {fix}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


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
