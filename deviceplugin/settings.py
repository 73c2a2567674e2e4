"""The device plugin's settings: GPUSHARE_… in its environment, read once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from deviceplugin.allocation.isolation import ISOLATION_CHOICES, IsolationChoice
from deviceplugin.allocation.response import Injection
from gpushare.domain.model import NodeName
from gpushare.logs import LOG_FORMATS, LOG_LEVELS, LogFormat
from gpushare.settings import Address, Reading

InjectionChoice = Literal["auto"] | Injection
INJECTION_CHOICES: tuple[InjectionChoice, ...] = ("auto", "cdi", "env", "nodes")
DeviceOrder = Literal["index", "fullest", "emptiest"]
"""Which card kube-scheduler tries first: by index, or by the units that are left."""
DEVICE_ORDERS: tuple[DeviceOrder, ...] = ("index", "fullest", "emptiest")

_MOST_RESERVE_MIB = 1 << 20
_MOST_PODS = 1000
_XID_DIGITS = 4


@dataclass(frozen=True)
class DevicePluginSettings:
    """The settings and their defaults; docs/deviceplugin.md lists them."""

    node: NodeName
    """This node's name in the API server; a DaemonSet gives ``spec.nodeName``."""
    kubeconfig: str | None = None
    """Path; the pod's own service account if none is given."""
    kubelet_dir: Path = Path("/var/lib/kubelet")
    """Where kubelet has ``device-plugins`` and ``pod-resources``."""
    state_dir: Path = Path("/var/lib/vcuda")
    """What must outlive the process, and what containers have mounted; the same path in
    the plugin's container and on the host."""
    host_root: Path = Path("/")
    """Where the host's ``/proc`` and ``/sys`` are found."""
    inject: InjectionChoice = "auto"
    """How a card is injected into a container."""
    cdi_dirs: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    """Where the node's CDI specifications are."""
    reserve_mib: int = 0
    """MiB of each card that are not offered."""
    isolation: IsolationChoice = "none"
    """What holds a container to its share of a card's memory."""
    isolation_overhead_mib: int = 512
    """MiB that a hard limit has above the container's units, for CUDA's own context."""
    isolation_pods: int = 8
    """For how many pods with limits a card keeps that overhead back."""
    simulated_cards: str | None = None
    """``4x24GiB`` or a YAML file: simulated cards instead of the driver's."""
    inventory: Path | None = None
    """A YAML file of cards that the driver does not know."""
    bitfusion_quota: bool = False
    """Whether ``bitfusion.io/gpu`` is offered too, for quotas on it."""
    dra: bool = False
    """Whether the cards are offered to ResourceClaims too, by a DRA driver."""
    dra_order: DeviceOrder = "index"
    """Which card kube-scheduler tries first for a claim."""
    startup_taint: bool = False
    """Whether the node's startup taint is taken away once the cards are offered."""
    look_every_s: float = 5.0
    """How often the cards are read, and new ones looked for."""
    harmless_xids: tuple[int, ...] = ()
    """Further XIDs that leave a card well, beside those that programs cause."""
    listen: Address = Address("0.0.0.0", 39997)
    """Metrics, which also serve as a liveness probe."""
    log_level: str = "INFO"
    log_format: LogFormat = "json"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Read the environment; return the settings and all complaints."""
        env = Reading(environ)
        settings = cls(
            node=NodeName(env.text("NODE_NAME") or ""),
            kubeconfig=env.text("KUBECONFIG"),
            kubelet_dir=env.folder("KUBELET_DIR", cls.kubelet_dir),
            state_dir=env.folder("STATE_DIR", cls.state_dir),
            host_root=env.folder("HOST_ROOT", cls.host_root),
            inject=env.one_of("INJECT", INJECTION_CHOICES, cls.inject),
            cdi_dirs=tuple(map(Path, _several(env, "CDI_DIRS", _is_absolute, "paths")))
            or cls.cdi_dirs,
            reserve_mib=env.whole(
                "RESERVE_MIB", cls.reserve_mib, least=0, most=_MOST_RESERVE_MIB
            ),
            isolation=env.one_of("ISOLATION", ISOLATION_CHOICES, cls.isolation),
            isolation_overhead_mib=env.whole(
                "ISOLATION_OVERHEAD_MIB",
                cls.isolation_overhead_mib,
                least=0,
                most=_MOST_RESERVE_MIB,
            ),
            isolation_pods=env.whole(
                "ISOLATION_PODS", cls.isolation_pods, least=1, most=_MOST_PODS
            ),
            simulated_cards=env.text("SIMULATED_CARDS"),
            inventory=env.file("INVENTORY"),
            bitfusion_quota=env.switch("BITFUSION_QUOTA", default=cls.bitfusion_quota),
            dra=env.switch("DRA", default=cls.dra),
            dra_order=env.one_of("DRA_ORDER", DEVICE_ORDERS, cls.dra_order),
            startup_taint=env.switch("STARTUP_TAINT", default=cls.startup_taint),
            look_every_s=env.seconds(
                "LOOK_EVERY_S", cls.look_every_s, least=0.1, most=300
            ),
            harmless_xids=tuple(
                map(int, _several(env, "HARMLESS_XIDS", _is_xid, "numbers"))
            ),
            listen=env.address("LISTEN", cls.listen),
            log_level=env.one_of("LOG_LEVEL", LOG_LEVELS, cls.log_level),
            log_format=env.one_of("LOG_FORMAT", LOG_FORMATS, cls.log_format),
        )
        if not settings.node:
            env.complain(
                "NODE_NAME",
                "is not set; give the node's name in the API server "
                "(in a DaemonSet: valueFrom.fieldRef.fieldPath spec.nodeName)",
            )
        env.misspelt()
        return settings, env.complaints


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
    return text.isascii() and text.isdigit() and len(text) <= _XID_DIGITS
