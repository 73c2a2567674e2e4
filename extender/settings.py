"""Read the extender's settings: GPUSHARE_… in its environment."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gpushare.domain.policies import CARD_ORDERS, DEFAULT_POLICY, POLICIES, CardOrder
from gpushare.kube.names import (
    EXTENDER_CLAIMS_PORT,
    EXTENDER_PORT,
    EXTENDER_PUBLIC_PORT,
)
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.server.start import check_ports
from gpushare.server.tls import SETTINGS as TLS_SETTINGS
from gpushare.server.tls import TlsFiles
from gpushare.settings import PREFIX, Address, Reading


@dataclass(frozen=True, slots=True)
class ResourceClaimsListener:
    """Where ResourceClaims are reviewed; a client CA is optional in ``tls``."""

    listen: Address
    tls: TlsFiles


@dataclass(frozen=True)
class ExtenderSettings:
    """The extender's settings with their defaults, as in docs/operations.md."""

    listen: Address = Address("127.0.0.1", EXTENDER_PORT)
    """Scheduler verbs and /snapshot. Without mutual TLS it must be on loopback, since
    whoever reaches it can bind pods."""
    public_listen: Address = Address("0.0.0.0", EXTENDER_PUBLIC_PORT)
    """Health, readiness and metrics, read-only, for probes and Prometheus."""
    tls_cert: str | None = None
    """Path of the server's certificate; with the next two, for mutual TLS."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """Path of the CA whose clients may call the verbs."""
    claims_listen: Address | None = None
    """Reviews of ResourceClaims, by TLS, for the API server of this host; None for no
    reviews, and no watch of claims. On loopback, unless a client CA is given."""
    claims_tls_cert: str | None = None
    """Path of this listener's certificate."""
    claims_tls_key: str | None = None
    claims_tls_client_ca: str | None = None
    """Path of the CA whose clients may ask; on loopback it may be left out."""
    kubeconfig: str | None = None
    """Path; by default the pod's service account is used."""
    policy: str = DEFAULT_POLICY
    """For pods that do not name one."""
    card_order: CardOrder = "index"
    """How the cards of a node are ordered: by their index, or by their UUID."""
    threads: int = 16
    """Binds at a time; each waits for the API server in a thread."""
    bind_timeout_s: float = 4.0
    """Less than kube-scheduler's lease duration minus its renew deadline (15 - 10 s):
    a write of a former leader cannot take effect after the new one's."""
    wait_for_bind_s: float = 0.02
    """How long a filter waits for the bind of the previous pod; 0 for never."""
    wait_for_news_s: float = 0.02
    """How long a filter waits for news if the pod fits nowhere; 0 for never. In all at
    most a fifth of the time."""
    pending_for_s: float = 5.0
    """How long a pod that filter let through counts before its bind."""
    stale_after_s: float = 60.0
    """Time without news from the API server after which it is not ready."""
    ui: bool = False
    """Whether the page /ui is served, on the listener of the verbs."""
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; if there are complaints, nothing may start."""
        env = Reading(environ)
        settings = cls(
            listen=env.address("LISTEN", cls.listen),
            public_listen=env.address("PUBLIC_LISTEN", cls.public_listen),
            tls_cert=env.text("TLS_CERT"),
            tls_key=env.text("TLS_KEY"),
            tls_client_ca=env.text("TLS_CLIENT_CA"),
            claims_listen=_optional_address(env, "CLAIMS_LISTEN"),
            claims_tls_cert=env.text("CLAIMS_TLS_CERT"),
            claims_tls_key=env.text("CLAIMS_TLS_KEY"),
            claims_tls_client_ca=env.text("CLAIMS_TLS_CLIENT_CA"),
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

    @property
    def claims(self) -> ResourceClaimsListener | None:
        """The listener for reviews of claims; None where there is none."""
        cert, key, listen = (
            self.claims_tls_cert,
            self.claims_tls_key,
            self.claims_listen,
        )
        if listen is None or not (cert and key):
            return None
        files = TlsFiles(cert, key, self.claims_tls_client_ca)
        return ResourceClaimsListener(listen, files)

    def _check(self, env: Reading) -> None:
        self._check_claims(env)
        given = (self.tls_cert, self.tls_key, self.tls_client_ca)
        for name, path in zip(TLS_SETTINGS, given, strict=True):
            if any(given) and not path:
                others = (PREFIX + other for other in TLS_SETTINGS if other != name)
                fix = "TLS needs it together with " + " and ".join(others)
                env.complain(name, f"is missing; {fix}")
        if not _is_loopback(self.listen.host) and self.tls is None:
            env.complain(
                "LISTEN",
                f"{self.listen} is not on loopback, and every client that reaches it "
                "can bind pods; use 127.0.0.1, and GPUSHARE_PUBLIC_LISTEN for metrics, "
                "or require client certificates with GPUSHARE_TLS_CLIENT_CA",
            )
        check_ports(env, self.listen, self.public_listen)

    def _check_claims(self, env: Reading) -> None:
        listen, ca = self.claims_listen, self.claims_tls_client_ca
        for setting, path in zip(
            TLS_SETTINGS, (self.claims_tls_cert, self.claims_tls_key, ca), strict=True
        ):
            if listen is None and path:
                fix = f"give {PREFIX}CLAIMS_LISTEN too, or leave it out"
                env.complain(f"CLAIMS_{setting}", f"has no listener; {fix}")
            elif listen and not path and setting != TLS_SETTINGS[-1]:
                fix = "the API server calls a webhook over TLS only"
                env.complain(f"CLAIMS_{setting}", f"is missing; {fix}")
        if listen is None:
            return
        if not _is_loopback(listen.host) and not ca:
            env.complain(
                "CLAIMS_LISTEN",
                f"{listen} is not on loopback, and every client that reaches it can "
                "reserve cards; use 127.0.0.1, or require client certificates with "
                f"{PREFIX}CLAIMS_TLS_CLIENT_CA",
            )
        if listen.port in (self.listen.port, self.public_listen.port):
            env.complain(
                "CLAIMS_LISTEN",
                f"{listen} has the port of another listener; each needs its own",
            )


def _optional_address(env: Reading, name: str) -> Address | None:
    if env.text(name) is None:
        return None
    return env.address(name, Address("127.0.0.1", EXTENDER_CLAIMS_PORT))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
