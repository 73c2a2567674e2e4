"""The exporter's settings: GPUSHARE_… in its environment; flags win over them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from exporter.http import Unit
from exporter.selection import Flags
from exporter.telemetry.fields import GROUPS, PROCESSES
from exporter.usage import CONTEXT_MIB, Mode
from gpushare.cards.node_settings import NodeSettings
from gpushare.settings import Address, Reading

UNITS: tuple[Unit, ...] = ("mib", "bytes")
WATCHDOG_MODES: tuple[Mode, ...] = ("off", "report", "evict")
HostnameLabel = Literal["hostname", "Hostname"]
HOSTNAME_LABELS: tuple[HostnameLabel, ...] = ("hostname", "Hostname")
Compute = Literal["none", "share"]
COMPUTE_CHOICES: tuple[Compute, ...] = ("none", "share")

_BARE_NODE_NAME = "KUBE_NODE_NAME"
_AGENTS = Address("0.0.0.0", 30060)
_EVERYWHERE = frozenset({"0.0.0.0", "[::]"})


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line sets; None and no groups if it sets nothing."""

    flags: Flags = field(default_factory=Flags)
    collect_unit: Unit | None = None
    watchdog: Mode | None = None


@dataclass(frozen=True)
class ExporterSettings(NodeSettings):
    """The settings and their defaults; docs/monitoring.md lists them all."""

    listen: Address = Address("0.0.0.0", 9400)
    """``/metrics``, ``/healthz`` and ``/v1/collect``."""
    collect_listen: Address | None = _AGENTS
    """``/v1/collect`` only; None is off."""
    fields_file: Path | None = None
    """A file of fields in dcgm-exporter's format; read again while running."""
    pods: bool = True
    """Whether pods are followed; if not, containers are not known, and no API server is
    needed."""
    collect_unit: Unit = "mib"
    """The unit of memory in ``/v1/collect``."""
    watchdog: Mode = "report"
    """What to do about a container that uses more memory than its share."""
    watchdog_after_s: float = 60.0
    """How long it must use more first."""
    watchdog_context_mib: int = CONTEXT_MIB
    """What each of its processes may hold in addition, for CUDA's context."""
    compute: Compute = "none"
    """Whether containers of tier ``preload`` are held to their cores."""
    hostname_label: HostnameLabel = "hostname"
    """The name of the host's label; older dashboards use a capital H."""
    flags: Flags = field(default_factory=Flags)
    """The groups that the command line switched on and off."""

    @classmethod
    def read(
        cls, environ: Mapping[str, str], given: CommandLine | None = None
    ) -> tuple[Self, list[str]]:
        """Read the environment; return the settings and all complaints."""
        env = Reading(environ)
        given = given or CommandLine()
        from_environment = cls._from_environment(
            env, environ.get(_BARE_NODE_NAME) or ""
        )
        settings = replace(
            from_environment,
            flags=given.flags,
            collect_unit=given.collect_unit or from_environment.collect_unit,
            watchdog=given.watchdog or from_environment.watchdog,
        )
        _complain(env, settings)
        env.misspelt()
        both = [
            f"--enable-{group.name} and --disable-{group.name}: give one of them"
            for group in GROUPS
            if group.name in given.flags.on & given.flags.off
        ]
        return settings, env.complaints + both

    @classmethod
    def _from_environment(cls, env: Reading, bare_name: str) -> Self:
        no_agent = env.text("COLLECT_LISTEN") == "off"
        return cls(
            **cls.read_shared(env, bare_name),
            listen=env.address("LISTEN", cls.listen),
            collect_listen=None if no_agent else env.address("COLLECT_LISTEN", _AGENTS),
            fields_file=env.file("FIELDS_FILE"),
            pods=env.switch("PODS", default=cls.pods),
            collect_unit=env.one_of("COLLECT_UNIT", UNITS, cls.collect_unit),
            watchdog=env.one_of("WATCHDOG", WATCHDOG_MODES, cls.watchdog),
            watchdog_after_s=env.seconds(
                "WATCHDOG_AFTER_S", cls.watchdog_after_s, least=0, most=86400
            ),
            watchdog_context_mib=env.whole(
                "WATCHDOG_CONTEXT_MIB", cls.watchdog_context_mib, least=0, most=1 << 20
            ),
            compute=env.one_of("COMPUTE", COMPUTE_CHOICES, cls.compute),
            hostname_label=env.one_of(
                "HOSTNAME_LABEL", HOSTNAME_LABELS, cls.hostname_label
            ),
        )


def _complain(env: Reading, settings: ExporterSettings) -> None:
    if not settings.node:
        env.complain(
            "NODE_NAME",
            f"is not set, nor is {_BARE_NODE_NAME}; give the node's name in the "
            "API server (in a pod: valueFrom.fieldRef.fieldPath spec.nodeName)",
        )
    if _clash(settings.listen, settings.collect_listen):
        env.complain(
            "COLLECT_LISTEN",
            f"{settings.collect_listen} is taken by GPUSHARE_LISTEN "
            f"({settings.listen}); give another port",
        )
    if settings.watchdog == "evict" and not settings.pods:
        env.complain("WATCHDOG", "evict needs pods; leave out GPUSHARE_PODS=off")
    if settings.compute == "share" and not settings.pods:
        env.complain("COMPUTE", "share needs pods; leave out GPUSHARE_PODS=off")
    if settings.compute == "share" and PROCESSES in settings.flags.off:
        env.complain("COMPUTE", f"share needs --disable-{PROCESSES} left out")


def _clash(address: Address, other: Address | None) -> bool:
    if other is None or address.port != other.port:
        return False
    return address.host == other.host or bool({address.host, other.host} & _EVERYWHERE)
