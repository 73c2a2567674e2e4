"""Pages as an exporter writes them, with a default for everything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.gpusharectl.cluster_states import NOW

TICK = NOW.timestamp() - 2
"""When the last rounds ended, two seconds before anybody looks."""
HOUR = 3600.0
MIB = 2**20


@dataclass(frozen=True)
class Use:
    """A container's series on one card; None and the series is not there."""

    pod: str
    mib: float | None = 0
    sm: float | None = 0
    namespace: str = "default"
    container: str = "main"
    idle_s: float | None = 0
    over: bool = False
    held: float | None = None
    allocated: float | None = 1

    def samples(self) -> Iterable[tuple[str, float | None]]:
        busy = None if self.idle_s is None else TICK - self.idle_s
        yield "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", self.allocated
        yield "DCGM_CUSTOM_PROCESS_MEM_USED", self.mib
        yield "DCGM_CUSTOM_PROCESS_SM_UTIL", self.sm
        yield "vcuda_container_last_busy_timestamp_seconds", busy
        yield "vcuda_container_over_share", float(self.over)
        yield "vcuda_container_held", self.held


@dataclass(frozen=True)
class Shown:
    """A card's series, and those of its containers."""

    uuid: str
    index: int = 0
    mib: float | None = 300
    busy: float | None = 0
    celsius: float | None = 41
    watts: float | None = 23.6
    unattributed: float | None = 300
    source: str = "process-utilization"
    uses: tuple[Use, ...] = ()
    outside: float | None = None

    def samples(self) -> Iterable[tuple[str, float | None]]:
        hidden = None if self.unattributed is None else self.unattributed * MIB
        yield "DCGM_FI_DEV_FB_USED", self.mib
        yield "DCGM_FI_DEV_GPU_UTIL", self.busy
        yield "DCGM_FI_DEV_GPU_TEMP", self.celsius
        yield "DCGM_FI_DEV_POWER_USAGE", self.watts
        yield "vcuda_card_unattributed_memory_bytes", hidden


@dataclass(frozen=True)
class Says:
    """What an exporter says of itself."""

    troubles: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    config_ok: bool = True
    times: Mapping[str, float] = field(
        default_factory=lambda: {"utilization": TICK, "memory": TICK, "processes": TICK}
    )


def page(*cards: Shown, told: Says | None = None, node: str = "n") -> bytes:
    """The text of a page, as far as anybody reads it."""
    lines: list[str] = []

    def put(name: str, value: float | None, **labels: str) -> None:
        if value is not None:
            pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
            lines.append(f"{name}{{{pairs}}} {value!r}\n")

    for card in cards:
        own = {"gpu": str(card.index), "UUID": card.uuid, "NodeName": node}
        for name, value in card.samples():
            put(name, value, **own)
        put("vcuda_sm_util_source", 1.0, **own, source=card.source)
        put("DCGM_FI_DEV_SM_CLOCK", 1200.0, **own)
        for use in card.uses:
            for name, value in use.samples():
                put(name, value, **own, **_names(use.namespace, use.pod, use.container))
        put("DCGM_CUSTOM_PROCESS_MEM_USED", card.outside, **own, **_names("", "", ""))
    said = told or Says()
    put("vcuda_exporter_info", 1.0, version="0.1.0", driver="550.54.15")
    put("vcuda_exporter_config_ok", float(said.config_ok))
    for about in said.troubles:
        put("vcuda_exporter_trouble", 1.0, about=about)
    for group, at in said.times.items():
        put("vcuda_collect_timestamp_seconds", at, group=group)
        put("vcuda_collector_success", float(group not in said.failed), group=group)
    return "".join(lines).encode()


def _names(namespace: str, pod: str, container: str) -> dict[str, str]:
    return {"NamespaceName": namespace, "PodName": pod, "ContainerName": container}
