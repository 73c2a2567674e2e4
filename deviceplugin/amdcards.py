"""AMD's cards and their processes, in the files of the amdgpu and amdkfd drivers.

Sources: the kernel's documents of amdgpu (driver-misc) and ``/sys/class/kfd``; the
UUID is written as rocminfo does, so that ``ROCR_VISIBLE_DEVICES`` takes it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deviceplugin.amdfiles import NotThere, number, text_or_nothing
from deviceplugin.cards import FoundCard, LeftOut
from deviceplugin.telemetry import ProcessUse
from gpushare.domain.model import CardUUID

CARDS = "sys/class/drm"
"""Where each card has a folder, under the root of the host."""

_KFD = "sys/class/kfd/kfd"
_MIB = 2**20
_UNIQUE = re.compile(r"(?!0+$)[0-9a-f]{16}")
_FACT = re.compile(r"^(\w+) (\d{1,20})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AmdCard:
    """One card, the folder of its files, and the numbers that amdkfd has for it."""

    card: FoundCard
    device: Path
    kfd_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where amdgpu drives a card: its PCI address, its files, amdkfd's numbers."""

    bus: str
    device: Path
    kfd_ids: tuple[str, ...] = ()


def places(root: Path) -> list[Place]:
    """Find where amdgpu drives a card, in the order of the PCI addresses."""
    kfd_ids = _kfd_ids(root)
    return [
        Place(bus, device, kfd_ids.get(bus, ()))
        for bus, device in sorted(_devices(root))
    ]


def described(place: Place) -> FoundCard | LeftOut:
    """Read what does not change of a card. It may hang, as all that asks a card."""
    memory_mib = _memory_mib(place.device)
    if not memory_mib:
        return LeftOut(place.bus, "amdgpu tells no memory of it")
    return _described(place.bus, place.device, memory_mib)


def found(
    answers: Mapping[Place, FoundCard | LeftOut | Exception],
) -> list[AmdCard | LeftOut]:
    """Give the cards with their indices, which follow their PCI addresses.

    One that did not answer is left out and keeps its place in the order.
    """
    all_found: list[AmdCard | LeftOut] = []
    taken: set[CardUUID] = set()
    index = 0
    for place, card in answers.items():
        if isinstance(card, LeftOut):
            all_found.append(card)
            continue
        if isinstance(card, Exception):
            all_found.append(LeftOut(place.bus, str(card)))
        else:
            if card.uuid in taken:
                # The parts of a card that was split all tell the whole one's number.
                card = replace(card, uuid=_by_address(place.bus))  # noqa: PLW2901
            taken.add(card.uuid)
            its = replace(card, index=index)
            all_found.append(AmdCard(its, place.device, place.kfd_ids))
        index += 1
    return all_found


def is_there(one: AmdCard) -> bool:
    """Say whether the card is still in its place and driven by amdgpu."""
    return _bus(one.device) == one.card.bus


def processes(root: Path, one: AmdCard) -> tuple[ProcessUse, ...]:
    """List the compute processes that have memory of a card.

    ``NotThere`` where amdkfd, which knows them, does not run or not for this card.
    """
    folder = root / _KFD / "proc"
    if not one.kfd_ids or not folder.is_dir():
        raise NotThere("amdkfd does not list this card's processes")
    used = {
        int(process.name): sum(_vram(process, kfd_id) for kfd_id in one.kfd_ids)
        for process in folder.iterdir()
        if process.name.isdecimal()
    }
    return tuple(
        ProcessUse(pid, memory_mib=size / _MIB)
        for pid, size in sorted(used.items())
        if size
    )


def driver_version(root: Path) -> str:
    """Give amdgpu's version; only one delivered apart from the kernel has any."""
    return text_or_nothing(root / "sys/module/amdgpu/version")


def _devices(root: Path) -> Iterator[tuple[str, Path]]:
    for card in (root / CARDS).glob("card*"):
        # Connectors are here too, card0-DP-1: their device is the card, no PCI device.
        if bus := _bus(card / "device"):
            yield bus, card / "device"


def _bus(device: Path) -> str:
    """Give the PCI address where amdgpu drives it, else nothing."""
    lines = text_or_nothing(device / "uevent").splitlines()
    words = dict(line.split("=", 1) for line in lines if "=" in line)
    return words.get("PCI_SLOT_NAME", "") if words.get("DRIVER") == "amdgpu" else ""


def _memory_mib(device: Path) -> int:
    try:
        return number(device / "mem_info_vram_total") // _MIB
    except (NotThere, OSError):
        return 0


def _described(bus: str, device: Path, memory_mib: int) -> FoundCard:
    unique = text_or_nothing(device / "unique_id")
    own = CardUUID(f"GPU-{unique}") if _UNIQUE.fullmatch(unique) else _by_address(bus)
    kind = text_or_nothing(device / "device").removeprefix("0x")
    return FoundCard(
        uuid=own,
        index=0,
        memory_mib=memory_mib,
        model=text_or_nothing(device / "product_name") or f"AMD {kind}".strip(),
        bus=bus,
        nodes=tuple(
            f"/dev/dri/{one.name}" for one in sorted((device / "drm").glob("renderD*"))
        ),
        known_to_driver=False,
    )


def _by_address(bus: str) -> CardUUID:
    return CardUUID(f"AMD-{bus}")


def _kfd_ids(root: Path) -> dict[str, tuple[str, ...]]:
    """Give amdkfd's numbers of cards by PCI address; a split card has several."""
    ids: dict[str, tuple[str, ...]] = {}
    for node in sorted((root / _KFD / "topology/nodes").glob("*")):
        kfd_id = text_or_nothing(node / "gpu_id")
        facts = dict(_FACT.findall(text_or_nothing(node / "properties")))
        # 0 is a node of processors.
        if kfd_id in ("", "0") or "location_id" not in facts:
            continue
        bus = _address(int(facts.get("domain", 0)), int(facts["location_id"]))
        ids[bus] = (*ids.get(bus, ()), kfd_id)
    return ids


def _address(domain: int, place: int) -> str:
    return f"{domain:04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.{place & 7}"


def _vram(process: Path, kfd_id: str) -> int:
    try:
        return number(process / f"vram_{kfd_id}")
    except (NotThere, OSError):
        return 0  # it has ended meanwhile
