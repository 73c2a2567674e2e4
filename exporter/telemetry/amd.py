"""Telemetry of AMD's cards, from the files of the amdgpu and amdkfd drivers.

Sources: the kernel's documentation of amdgpu (thermal, ras, driver-misc), its
``kgd_pp_interface.h`` for ``gpu_metrics``, and ``/sys/class/kfd``. The UUID has the
form of rocminfo, so that ``ROCR_VISIBLE_DEVICES`` accepts it. The fields have NVIDIA's
names. Encoders, PCIe throughput and profiling have no file.
"""

import errno
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    read_number_or_0,
    read_raw,
    read_text,
    read_text_or_nothing,
    read_values,
)
from gpushare.cards.deadline import DeadlineExceeded
from gpushare.cards.source import FoundCard, FoundCards, LeftOut, NoCardsYet
from gpushare.domain.model import CardUUID

CARDS = "sys/class/drm"
"""Where each card has a folder, under the host's root."""

_KFD = "sys/class/kfd/kfd"
_MIB = 2**20
_UNIQUE = re.compile(r"(?!0+$)[0-9a-f]{16}")
_FACT = re.compile(r"^(\w+) (\d{1,20})$", re.MULTILINE)
_ERRORS = re.compile(r"^(ue|ce):\s*(\d+)\s*$", re.MULTILINE)
_ENERGY_AT = {
    **{(1, revision): 24 for revision in (1, 2, 3, 4, 7, 8)},
    (1, 5): 88,
    (1, 6): 16,
}
"""The offset of the energy in ``gpu_metrics``, by format and content revision."""
_NEVER = 2**64 - 1
_MJ = 1000 / 2**16
"""Its unit, 2^-16 J, in mJ."""


@dataclass(frozen=True, slots=True)
class AmdgpuDevice:
    """Where amdgpu drives a card: its PCI address, its files, its ids in amdkfd."""

    bus: str
    device: Path
    kfd_ids: tuple[str, ...] = ()


class AmdTelemetry(FileTelemetry[AmdgpuDevice]):
    """A ``Telemetry`` over amdgpu's files."""

    def __init__(
        self, root: Path = Path("/"), *, deadline_s: float = DEADLINE_S
    ) -> None:
        super().__init__(root, deadline_s)
        self._known: dict[CardUUID, FoundCard] = {}

    def cards(self) -> FoundCards:
        """Look for cards: one that was known once stays listed under its index.

        ``NoCardsYet`` if amdgpu drives none now, or if listing them hangs.
        """
        folder = self._root / CARDS
        try:
            places = self._calls.make_one("places", partial(_places, self._root))
        except DeadlineExceeded as error:
            raise NoCardsYet(f"{folder}: {error}") from error
        if not places:
            raise NoCardsYet(f"{folder} shows no card of the amdgpu driver")
        described, left_out = _indexed(
            self._calls.make_all(
                {place: partial(_described, place) for place in places}
            )
        )
        with self._knowing:
            for place, card in described:
                self._remember(place, card)
            cards = list(self._known.values())
        known = {card.bus for card in cards}
        unknown = tuple(card for card in left_out if card.name not in known)
        return FoundCards(tuple(sorted(cards, key=lambda card: card.index)), unknown)

    def driver_version(self) -> str:
        """Return amdgpu's version; empty if it came with the kernel, or hangs."""
        path = self._root / "sys/module/amdgpu/version"
        with suppress(DeadlineExceeded):
            return self._calls.make_one("version", partial(read_text_or_nothing, path))
        return ""

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read the files of each card."""
        return self._ask(CardAnswer, group, partial(_values, wanted=sorted(fields)))

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """List the compute processes; amdkfd tells only their memory."""
        ask = partial(_processes, self._root)
        return self._ask(ProcessesAnswer, "processes", ask)

    def _remember(self, place: AmdgpuDevice, card: FoundCard) -> None:
        taken = {other.index for other in self._known.values()}
        index = max(taken) + 1 if card.index in taken else card.index
        if card.uuid in self._known:
            index = self._known[card.uuid].index
        self._known[card.uuid] = replace(card, index=index)
        self._places[card.uuid] = place


class _CardMoved(Exception):
    """The card is not in its place any more."""


def _places(root: Path) -> list[AmdgpuDevice]:
    """Find where amdgpu drives a card, in the order of the PCI addresses."""
    # Connectors such as card0-DP-1 are there too; they are no PCI devices.
    folders = [card / "device" for card in (root / CARDS).glob("card*")]
    devices = sorted((bus, device) for device in folders if (bus := _bus(device)))
    kfd_ids = _kfd_ids(root, {bus for bus, _ in devices})
    return [AmdgpuDevice(bus, device, kfd_ids.get(bus, ())) for bus, device in devices]


def _bus(device: Path) -> str:
    """Return the PCI address if amdgpu drives it, else nothing."""
    lines = read_text_or_nothing(device / "uevent").splitlines()
    words = dict(line.split("=", 1) for line in lines if "=" in line)
    return words.get("PCI_SLOT_NAME", "") if words.get("DRIVER") == "amdgpu" else ""


def _kfd_ids(root: Path, buses: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return amdkfd's ids by PCI address; a partitioned card has several.

    Where no card has the address, its last digit is the number of the partition: an
    Instinct MI300X at ``0000:0a:00.0`` has 0xa00, 0xa01 and so on.
    """
    ids: dict[str, tuple[str, ...]] = {}
    for node in sorted((root / _KFD / "topology/nodes").glob("*")):
        kfd_id = read_text_or_nothing(node / "gpu_id")
        facts = dict(_FACT.findall(read_text_or_nothing(node / "properties")))
        # 0 is a node without a card.
        if kfd_id in ("", "0") or "location_id" not in facts:
            continue
        domain, at = int(facts.get("domain", 0)), int(facts["location_id"])
        bus = f"{domain:04x}:{at >> 8 & 255:02x}:{at >> 3 & 31:02x}.{at & 7}"
        if bus not in buses:
            bus = f"{bus[:-1]}0"
        ids[bus] = (*ids.get(bus, ()), kfd_id)
    return ids


def _described(place: AmdgpuDevice) -> FoundCard | LeftOut:
    """Read what does not change of a card. It may hang, as every call of a card."""
    bus, device = place.bus, place.device
    memory_mib = read_number_or_0(device / "mem_info_vram_total") // _MIB
    if not memory_mib:
        return LeftOut(bus, "amdgpu does not report its memory")
    unique = read_text_or_nothing(device / "unique_id")
    kind = read_text_or_nothing(device / "device").removeprefix("0x")
    nodes = sorted((device / "drm").glob("renderD*"))
    return FoundCard(
        uuid=CardUUID(f"GPU-{unique}" if _UNIQUE.fullmatch(unique) else f"AMD-{bus}"),
        index=0,
        memory_mib=memory_mib,
        model=read_text_or_nothing(device / "product_name") or f"AMD {kind}".strip(),
        bus=bus,
        device_nodes=tuple(f"/dev/dri/{node.name}" for node in nodes),
        known_to_driver=False,
        integrated=_is_apu(device),
        # The device plugin offers those of its inventory, which come before these.
        offered=False,
    )


def _is_apu(device: Path) -> bool:
    """Return whether the GPU is part of a processor, and uses the host's memory.

    Only of those amdgpu has the voltage of the northbridge (``amdgpu_pm.c``). Their
    own memory is what the BIOS keeps for the screen: it is always nearly full.
    """
    return any(device.glob("hwmon/hwmon*/in1_label"))


def _indexed(
    answers: Mapping[AmdgpuDevice, FoundCard | LeftOut | Exception],
) -> tuple[list[tuple[AmdgpuDevice, FoundCard]], list[LeftOut]]:
    """Return the cards with their indices, in the order of their PCI addresses.

    A card that did not answer is left out and keeps its place in the order.
    """
    cards: list[tuple[AmdgpuDevice, FoundCard]] = []
    left_out: list[LeftOut] = []
    for place, card in answers.items():
        if isinstance(card, LeftOut):
            left_out.append(card)
        elif isinstance(card, Exception):
            left_out.append(LeftOut(place.bus, str(card)))
        else:
            # All partitions of a card have the unique id of the whole card.
            taken = card.uuid in {other.uuid for _, other in cards}
            uuid = CardUUID(f"AMD-{place.bus}") if taken else card.uuid
            cards.append((place, replace(card, uuid=uuid)))
    there = [place for place, card in answers.items() if not isinstance(card, LeftOut)]
    return [(at, replace(card, index=there.index(at))) for at, card in cards], left_out


def _processes(root: Path, place: AmdgpuDevice) -> ProcessesAnswer:
    """List the compute processes that have memory of a card.

    amdkfd knows them, and only their memory; it may not have this card.
    """
    _check(place)
    folder = root / _KFD / "proc"
    if not place.kfd_ids or not folder.is_dir():
        return ProcessesAnswer(known=False, sm_source=SmSource.CARD)
    used = {
        # 0 also if it has ended meanwhile.
        int(process.name): sum(
            read_number_or_0(process / f"vram_{id_}") for id_ in place.kfd_ids
        )
        for process in folder.iterdir()
        if process.name.isdecimal()
    }
    uses = (ProcessUse(pid, size / _MIB) for pid, size in sorted(used.items()) if size)
    return ProcessesAnswer(tuple(uses), SmSource.CARD)


def _check(place: AmdgpuDevice) -> None:
    if _bus(place.device) != place.bus:
        raise _CardMoved(f"{place.bus} is not there any more")


def _values(place: AmdgpuDevice, wanted: Collection[str]) -> CardAnswer:
    _check(place)
    return read_values(_VALUES, place.device, wanted)


def _file(name: str, device: Path) -> float:
    return read_number(device / name)


def _mib(name: str, device: Path) -> int:
    if name == "total" and _is_apu(device):
        raise NotThere("the card uses the host's memory")
    return read_number(device / f"mem_info_vram_{name}") // _MIB


def _hwmon(names: Sequence[str], scale: int, device: Path) -> float:
    """Read the first of these files that exists; the folder's name has a number."""
    for folder in sorted((device / "hwmon").glob("hwmon*")):
        for name in names:
            with suppress(NotThere):
                return read_number(folder / name) / scale
    raise NotThere(names[0])


def _errors(kind: str, device: Path) -> float:
    """Add up the errors of one kind over all blocks of the card."""
    counts: list[int] = []
    for path in (device / "ras").glob("*_err_count"):
        try:
            errors = _ERRORS.findall(read_text(path))
        except NotThere:
            continue
        if not errors:
            # While the card is in reset, the sum without it would be too low.
            raise OSError(errno.EBUSY, "it counts no errors now", str(path))
        counts += [int(count) for name, count in errors if name == kind]
    if not counts:
        raise NotThere(kind)
    return sum(counts)


def _bad_pages(flag: str, device: Path) -> int:
    """Count lines ``page : size : flag``; R is retired, P is pending."""
    lines = read_text(device / "ras/gpu_vram_bad_pages").splitlines()
    return sum(line.rpartition(":")[2].strip() == flag for line in lines)


def _energy_mj(device: Path) -> float:
    metrics = read_raw(device / "gpu_metrics")
    at = _ENERGY_AT.get((metrics[2], metrics[3])) if metrics[3:] else None
    if at is None or len(metrics) < at + 8:
        raise NotThere("energy")
    (counted,) = struct.unpack_from("<Q", metrics, at)
    # All bits are set if the card does not count it.
    if counted == _NEVER:
        raise NotThere("energy")
    return float(counted) * _MJ


_VALUES: Mapping[str, Callable[[Path], float]] = {
    fields.GPU_UTIL: partial(_file, "gpu_busy_percent"),
    fields.MEM_COPY_UTIL: partial(_file, "mem_busy_percent"),
    fields.FB_USED: partial(_mib, "used"),
    fields.FB_FREE: lambda device: _mib("total", device) - _mib("used", device),
    fields.FB_TOTAL: partial(_mib, "total"),
    # The chip's edge; some new cards tell only its hottest point.
    fields.GPU_TEMP: partial(_hwmon, ("temp1_input", "temp2_input"), 1000),
    fields.MEMORY_TEMP: partial(_hwmon, ("temp3_input",), 1000),
    # Averaged, or the present value on the newest cards.
    fields.POWER_USAGE: partial(_hwmon, ("power1_average", "power1_input"), 10**6),
    fields.TOTAL_ENERGY_CONSUMPTION: _energy_mj,
    fields.SM_CLOCK: partial(_hwmon, ("freq1_input",), 10**6),
    fields.MEM_CLOCK: partial(_hwmon, ("freq2_input",), 10**6),
    fields.PCIE_REPLAY_COUNTER: partial(_file, "pcie_replay_count"),
    fields.ECC_SBE_VOL_TOTAL: partial(_errors, "ce"),
    fields.ECC_DBE_VOL_TOTAL: partial(_errors, "ue"),
    fields.RETIRED_DBE: partial(_bad_pages, "R"),
    fields.RETIRED_PENDING: lambda device: min(1, _bad_pages("P", device)),
}
