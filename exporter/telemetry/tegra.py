"""Telemetry of the GPU of an NVIDIA Jetson, from the files of its drivers.

Such a GPU has no memory of its own and only a part of NVML: none before JetPack 6, only
its name on Orin, and on Thor most but memory. Sources, none tried on a Jetson here:
``nvgpu`` writes the load in per mille, the kernel's thermal zones are in millidegrees,
and the ``iovmm/clients`` of ``nvmap`` in debugfs lists the processes. Thor's driver
writes no load and does not use ``nvmap``; there NVML tells both.
"""

import errno
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from exporter.telemetry import fields
from exporter.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from exporter.telemetry.sysfs import (
    DEADLINE_S,
    FileTelemetry,
    NotThere,
    read_number,
    read_text,
    read_text_or_nothing,
    read_values,
)
from gpushare.cards.deadline import DeadlineExceeded
from gpushare.cards.source import FoundCard, FoundCards, LeftOut, NoCardsYet
from gpushare.domain.model import CardUUID

_FOLDERS = ("sys/devices/platform", "sys/devices/platform/bus@0", "sys/devices")
_NODES = (
    "gpu.0",  # a link to one of the others
    "17000000.gpu",  # Orin
    "17000000.ga10b",  # Orin before JetPack 6
    "17000000.gv11b",  # Xavier
    "17000000.gp10b",  # TX2
    "57000000.gpu",  # Nano
)
_THOR = "sys/class/devfreq/gpu-gpc-0"
_ZONES = frozenset({"gpu-thermal", "gpu-therm"})
"""Types of the GPU's thermal zone, in small letters; the second is JetPack 5's."""
_COLDEST = -100_000
"""A sensor without power may tell -256 degrees, where other kernels say EAGAIN."""
_MEMINFO = "proc/meminfo"
_CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"
_MODEL = "sys/firmware/devicetree/base/model"
_FACT = re.compile(r"^(\w+):\s+(\d{1,15}) kB$", re.MULTILINE)
_CLIENT = re.compile(
    r"^\s*\S+\s+\S.*?\s(?P<pid>\d+)(?:\s+\d+[KMG])*\s+(?P<size>\d+)(?P<unit>[KMG])\s*$"
)
"""``user NAME PID SIZE``; some kernels have a column before the size."""
_IN_A_MIB = {"K": 2**10, "M": 1, "G": 2**-10}
_FULL = 1000


class TegraTelemetry(FileTelemetry[Path]):
    """A ``Telemetry`` over the one GPU of a Jetson, and of nothing on other nodes.

    ``named`` returns the GPU as NVML lists it, if it does: the two are one card.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        named: Callable[[], FoundCard | None] = lambda: None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        super().__init__(root, deadline_s)
        self._named = named

    def cards(self) -> FoundCards:
        """Look for the GPU; ``NoCardsYet`` on a node that is no Jetson."""
        try:
            by_files = self._calls.make_one("card", partial(_find_gpu, self._root))
            memory_mib = self._calls.make_one("host memory", self._memory_mib)
        except DeadlineExceeded as error:
            raise NoCardsYet(f"the files of a Jetson's GPU: {error}") from error
        named = self._named()
        card = named or by_files
        if card is None:
            raise NoCardsYet("this node is no Jetson")
        if not memory_mib:
            return FoundCards((), (LeftOut(card.uuid, f"{_MEMINFO} has no MemTotal"),))
        card = replace(card, memory_mib=memory_mib, known_to_driver=False)
        with self._knowing:
            self._places = {card.uuid: self._root}
        return FoundCards((card,))

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read the files of the GPU. ``NoCardsYet``."""
        ask = partial(read_values, _VALUES, wanted=sorted(fields))
        return self._ask(CardAnswer, group, ask)

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """List the processes; only their memory is known. ``NoCardsYet``."""
        return self._ask(ProcessesAnswer, "processes", _processes)

    def _memory_mib(self) -> int:
        return host_memory_mib(self._root)


def host_memory_mib(root: Path) -> int:
    """Return the node's memory, which is that of a Jetson's GPU; 0 if it is unknown."""
    facts = dict(_FACT.findall(read_text_or_nothing(root / _MEMINFO)))
    return int(facts.get("MemTotal", 0)) // 2**10


def _find_gpu(root: Path) -> FoundCard | None:
    """Return the GPU by its files, without its memory; None if there are none."""
    node = _node(root)
    if node is None:
        return None
    model = read_text_or_nothing(root / _MODEL).strip("\0")
    return FoundCard(
        uuid=CardUUID(f"TEGRA-{node.resolve().name}"),
        index=0,
        memory_mib=0,
        model=model or "NVIDIA Jetson",
        known_to_driver=False,
        integrated=True,
    )


def _node(root: Path) -> Path | None:
    """Return the GPU's folder in sysfs; that of Thor has no load in it."""
    places = (root / folder / name for name in _NODES for folder in _FOLDERS)
    node = next((place for place in places if (place / "load").exists()), None)
    thor = root / _THOR
    return thor if node is None and thor.exists() else node


def _load_percent(root: Path) -> float:
    node = _node(root)
    if node is None:
        raise NotThere("load")
    load = read_number(node / "load")
    if not 0 <= load <= _FULL:
        raise OSError(errno.ERANGE, f"{load} is no load in per mille", str(node))
    return load / 10


def _temperature_c(root: Path) -> float:
    """Read the GPU's thermal zone; zones have numbers, only their type is a name."""
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        if read_text_or_nothing(zone / "type").lower() in _ZONES:
            millidegrees = read_number(zone / "temp")
            if millidegrees < _COLDEST:
                raise BlockingIOError(errno.EAGAIN, "the GPU is off", str(zone))
            return millidegrees / 1000
    raise NotThere("gpu-thermal")


def _memory_fact_mib(name: str, root: Path) -> int:
    facts = dict(_FACT.findall(read_text(root / _MEMINFO)))
    if name not in facts:
        raise NotThere(f"{_MEMINFO}: {name}")
    return int(facts[name]) // 2**10


def _used_mib(root: Path) -> int:
    """Return what the kernel could not give to a program, on the CPU or the GPU."""
    total, free = (_memory_fact_mib(name, root) for name in _TOTAL_AND_FREE)
    return max(0, total - free)


_TOTAL_AND_FREE = ("MemTotal", "MemAvailable")

_VALUES: Mapping[str, Callable[[Path], float]] = {
    fields.GPU_UTIL: _load_percent,
    fields.GPU_TEMP: _temperature_c,
    fields.FB_TOTAL: partial(_memory_fact_mib, "MemTotal"),
    fields.FB_FREE: partial(_memory_fact_mib, "MemAvailable"),
    fields.FB_USED: _used_mib,
}


def _processes(root: Path) -> ProcessesAnswer:
    """List the processes that ``nvmap`` knows, which root alone can read.

    Unknown if it knows no memory of any: so it is where the driver does not use it.
    """
    try:
        lines = read_text(root / _CLIENTS).splitlines()
    except (NotThere, OSError):
        lines = []
    used: dict[int, float] = {}
    for client in filter(None, map(_CLIENT.match, lines)):
        mib = int(client["size"]) / _IN_A_MIB[client["unit"]]
        pid = int(client["pid"])
        used[pid] = used.get(pid, 0.0) + mib
    uses = tuple(ProcessUse(pid, mib) for pid, mib in sorted(used.items()) if mib)
    return ProcessesAnswer(uses, SmSource.CARD, known=bool(uses))
