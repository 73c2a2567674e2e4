"""The device plugin's settings: GPUSHARE_… in its environment, read once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from deviceplugin.allocation.isolation import ISOLATION_CHOICES, IsolationChoice
from gpushare.cards.node_settings import NodeSettings
from gpushare.domain.quantity import is_plain_number
from gpushare.settings import PREFIX, Address, Reading

Injection = Literal["cdi", "env", "nodes"]
INJECTIONS: tuple[Injection, ...] = ("cdi", "env", "nodes")
InjectionChoice = Literal["auto"] | Injection
INJECTION_CHOICES: tuple[InjectionChoice, ...] = ("auto", *INJECTIONS)
DeviceOrder = Literal["index", "fullest", "emptiest"]
"""Which card kube-scheduler tries first: by index, or by the units that are left."""
DEVICE_ORDERS: tuple[DeviceOrder, ...] = ("index", "fullest", "emptiest")

_MOST_RESERVE_MIB = 1 << 20
_XID_DIGITS = 4
_FORMER = ("ISOLATION_OVERHEAD_MIB", "ISOLATION_PODS")
"""Of the version before. A DaemonSet may set them still: they do nothing."""


@dataclass(frozen=True)
class DevicePluginSettings(NodeSettings):
    """The settings and their defaults; docs/deviceplugin.md lists them all."""

    inject: InjectionChoice = "auto"
    """How a card is injected into a container."""
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    """Where the node's CDI specifications are."""
    reserve_mib: int = 0
    """MiB of each card that are not offered."""
    isolation: IsolationChoice = "none"
    """What holds a container to its share of a card's memory."""
    isolation_context_mib: int = 256
    """MiB that tier ``preload`` counts for the CUDA context of each process. In both
    tiers also the limit of a container of cores alone."""
    bitfusion_quota: bool = False
    """Whether ``bitfusion.io/gpu`` is offered too, for quotas on it."""
    dra: bool = False
    """Whether the cards are offered to ResourceClaims too, by a DRA driver."""
    dra_order: DeviceOrder = "index"
    """Which card kube-scheduler tries first for a claim."""
    startup_taint: bool = False
    """Whether the node's startup taint is taken away once the cards are offered."""
    harmless_xids: tuple[int, ...] = ()
    """Further XIDs that leave a card well, beside those that programs cause."""
    listen: Address = Address("0.0.0.0", 39997)
    """Metrics, which also serve as a liveness probe."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; return the settings and all complaints."""
        env = Reading(environ)
        settings = cls(
            **cls.read_shared(env),
            inject=env.one_of("INJECT", INJECTION_CHOICES, cls.inject),
            cdi_dirs=tuple(map(Path, _several(env, "CDI_DIRS", _is_absolute, "paths")))
            or cls.cdi_dirs,
            reserve_mib=env.whole(
                "RESERVE_MIB", cls.reserve_mib, least=0, most=_MOST_RESERVE_MIB
            ),
            isolation=env.one_of("ISOLATION", ISOLATION_CHOICES, cls.isolation),
            isolation_context_mib=env.whole(
                "ISOLATION_CONTEXT_MIB",
                cls.isolation_context_mib,
                least=1,
                most=_MOST_RESERVE_MIB,
            ),
            bitfusion_quota=env.switch("BITFUSION_QUOTA", default=cls.bitfusion_quota),
            dra=env.switch("DRA", default=cls.dra),
            dra_order=env.one_of("DRA_ORDER", DEVICE_ORDERS, cls.dra_order),
            startup_taint=env.switch("STARTUP_TAINT", default=cls.startup_taint),
            harmless_xids=tuple(
                map(int, _several(env, "HARMLESS_XIDS", _is_xid, "numbers"))
            ),
            listen=env.address("LISTEN", cls.listen),
        )
        if not settings.node:
            env.complain(
                "NODE_NAME",
                "is not set; give the node's name in the API server "
                "(in a DaemonSet: valueFrom.fieldRef.fieldPath spec.nodeName)",
            )
        for name in _FORMER:
            # Else it would be taken for another one misspelt.
            env.text(name)
        env.misspelt()
        return settings, env.complaints


def former_settings(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that are set, and that only the version before read."""
    return [f"{PREFIX}{name}" for name in _FORMER if f"{PREFIX}{name}" in environ]


def _several(
    env: Reading, name: str, is_valid: Callable[[str], bool], what: str
) -> list[str]:
    """Read texts, separated by commas; none if they are not all valid."""
    raw = env.text(name)
    parts = [] if raw is None else [part.strip() for part in raw.split(",")]
    if all(map(is_valid, parts)):
        return parts
    env.complain(name, f"{raw!r} is not valid; give {what}, separated by commas")
    return []


def _is_absolute(text: str) -> bool:
    return text.startswith("/")


def _is_xid(text: str) -> bool:
    return is_plain_number(text, _XID_DIGITS)
