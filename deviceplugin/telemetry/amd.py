"""Telemetry of AMD's cards, from the files of the amdgpu and amdkfd drivers.

Sources: the kernel's documentation of amdgpu (thermal, ras, driver-misc), its
``kgd_pp_interface.h`` for ``gpu_metrics``, and ``/sys/class/kfd``. The UUID has the
form of rocminfo, so that ``ROCR_VISIBLE_DEVICES`` accepts it. The fields have NVIDIA's
names. Encoders, PCIe throughput and profiling have no file.
"""

import errno
import re
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deviceplugin.cards.deadline import DeadlineCalls, DeadlineExceeded
from deviceplugin.cards.source import Found, FoundCard, LeftOut, NoCardsYet, XidEvent
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from gpushare.domain.model import CardUUID

_READ_BYTES = 65536
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EINVAL}
"""What kernels of different age answer for something that a card does not have."""


class NotThere(Exception):
    """This card, or its driver, does not have this value."""


def raw(path: Path) -> bytes:
    """Return a file's bytes.

    Raises ``NotThere``, or ``OSError`` if it cannot be read now, as during a reset.
    """
    try:
        with path.open("rb") as opened:
            return opened.read(_READ_BYTES)
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotThere(str(path)) from error
        raise


def text(path: Path) -> str:
    """Return a file's text, stripped; raises what ``raw`` raises."""
    return raw(path).decode(errors="replace").strip()


def text_or_nothing(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return text(path)
    except (NotThere, OSError):
        return ""


def number(path: Path) -> int:
    """Return the whole number that a file holds; raises what ``raw`` raises."""
    found = text(path)
    try:
        return int(found)
    except ValueError as error:
        raise NotThere(f"{path} holds no number") from error


CARDS = "sys/class/drm"
"""Where each card has a folder, under the host's root."""

_KFD = "sys/class/kfd/kfd"
_MIB = 2**20
_UNIQUE = re.compile(r"(?!0+$)[0-9a-f]{16}")
_FACT = re.compile(r"^(\w+) (\d{1,20})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AmdCard:
    """One card, the folder of its files, and its ids in amdkfd."""

    card: FoundCard
    device: Path
    kfd_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where amdgpu drives a card: its PCI address, its files, its ids in amdkfd."""

    bus: str
    device: Path
    kfd_ids: tuple[str, ...] = ()


def card_places(root: Path) -> list[Place]:
    """Find where amdgpu drives a card, in the order of the PCI addresses."""
    kfd_ids = _kfd_ids(root)
    return [
        Place(bus, device, kfd_ids.get(bus, ()))
        for bus, device in sorted(_devices(root))
    ]


def described(place: Place) -> FoundCard | LeftOut:
    """Read what does not change of a card. It may hang, as every call of a card."""
    memory_mib = _memory_mib(place.device)
    if not memory_mib:
        return LeftOut(place.bus, "amdgpu does not tell its memory")
    return _described(place.bus, place.device, memory_mib)


def found_cards(
    answers: Mapping[Place, FoundCard | LeftOut | Exception],
) -> list[AmdCard | LeftOut]:
    """Return the cards with their indices, in the order of their PCI addresses.

    A card that did not answer is left out and keeps its place in the order.
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
                # All partitions of a card have the unique id of the whole card.
                card = replace(card, uuid=_by_address(place.bus))  # noqa: PLW2901
            taken.add(card.uuid)
            its = replace(card, index=index)
            all_found.append(AmdCard(its, place.device, place.kfd_ids))
        index += 1
    return all_found


def is_there(one: AmdCard) -> bool:
    """Return whether the card is still in its place and driven by amdgpu."""
    return _bus(one.device) == one.card.bus


def processes(root: Path, one: AmdCard) -> tuple[ProcessUse, ...]:
    """List the compute processes that have memory of a card.

    Raises ``NotThere`` if amdkfd, which knows them, does not have this card.
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
    """Return amdgpu's version; empty if it came with the kernel."""
    return text_or_nothing(root / "sys/module/amdgpu/version")


def _devices(root: Path) -> Iterator[tuple[str, Path]]:
    for card in (root / CARDS).glob("card*"):
        # Connectors such as card0-DP-1 are here too; they are no PCI devices.
        if bus := _bus(card / "device"):
            yield bus, card / "device"


def _bus(device: Path) -> str:
    """Return the PCI address if amdgpu drives it, else nothing."""
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
    """Return amdkfd's ids by PCI address; a partitioned card has several."""
    ids: dict[str, tuple[str, ...]] = {}
    for node in sorted((root / _KFD / "topology/nodes").glob("*")):
        kfd_id = text_or_nothing(node / "gpu_id")
        facts = dict(_FACT.findall(text_or_nothing(node / "properties")))
        # 0 is a node without a card.
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


_ENERGY_AT = {(1, 1): 24, (1, 2): 24, (1, 3): 24, (1, 4): 24, (1, 5): 88}
"""The offset of the energy in ``gpu_metrics``, by format and content revision."""
_NEVER = 2**64 - 1
_MJ = 1000 / 2**16
"""Its unit, 2^-16 J, in mJ."""
_ERRORS = re.compile(r"^(ue|ce):\s*(\d+)\s*$", re.MULTILINE)


def value(device: Path, field: str) -> float:
    """Read one field of a card, in the field's own unit.

    Raises ``NotThere``, or ``OSError`` if it cannot be read now.
    """
    read = _VALUES.get(field)
    if read is None:
        raise NotThere(field)
    return read(device)


def _plain(name: str) -> Callable[[Path], float]:
    return lambda device: number(device / name)


def _hwmon(scale: int, *names: str) -> Callable[[Path], float]:
    """Read the first of these files that exists; the folder's name has a number."""

    def read(device: Path) -> float:
        for folder in sorted((device / "hwmon").glob("hwmon*")):
            for name in names:
                try:
                    return number(folder / name) / scale
                except NotThere:
                    continue
        raise NotThere(names[0])

    return read


def _mib(name: str) -> Callable[[Path], int]:
    return lambda device: number(device / name) // _MIB


_USED_MIB = _mib("mem_info_vram_used")
_TOTAL_MIB = _mib("mem_info_vram_total")


def _errors(kind: str) -> Callable[[Path], float]:
    """Add up the errors of one kind over all blocks of the card."""

    def read(device: Path) -> float:
        counts: list[int] = []
        for path in (device / "ras").glob("*_err_count"):
            try:
                told = _ERRORS.findall(text(path))
            except NotThere:
                continue
            if not told:
                # While the card is in reset, the sum without it would be too low.
                raise OSError(errno.EBUSY, "it counts no errors now", str(path))
            counts += [int(count) for name, count in told if name == kind]
        if not counts:
            raise NotThere(kind)
        return sum(counts)

    return read


def _bad_pages(flag: str) -> Callable[[Path], int]:
    """Count lines ``page : size : flag``; R is retired, P is pending."""

    def read(device: Path) -> int:
        lines = text(device / "ras/gpu_vram_bad_pages").splitlines()
        return sum(line.rpartition(":")[2].strip() == flag for line in lines)

    return read


def _energy_mj(device: Path) -> float:
    metrics = raw(device / "gpu_metrics")
    at = _ENERGY_AT.get((metrics[2], metrics[3])) if metrics[3:] else None
    if at is None or len(metrics) < at + 8:
        raise NotThere("energy")
    (counted,) = struct.unpack_from("<Q", metrics, at)
    # All bits are set if the card does not count it.
    if counted == _NEVER:
        raise NotThere("energy")
    return float(counted) * _MJ


_VALUES: Mapping[str, Callable[[Path], float]] = {
    fields.GPU_UTIL: _plain("gpu_busy_percent"),
    fields.MEM_COPY_UTIL: _plain("mem_busy_percent"),
    fields.FB_USED: _USED_MIB,
    fields.FB_FREE: lambda device: _TOTAL_MIB(device) - _USED_MIB(device),
    fields.FB_TOTAL: _TOTAL_MIB,
    # The chip's edge; some new cards tell only its hottest point.
    fields.GPU_TEMP: _hwmon(1000, "temp1_input", "temp2_input"),
    fields.MEMORY_TEMP: _hwmon(1000, "temp3_input"),
    # Averaged, or the present value on the newest cards.
    fields.POWER_USAGE: _hwmon(1_000_000, "power1_average", "power1_input"),
    fields.TOTAL_ENERGY_CONSUMPTION: _energy_mj,
    fields.SM_CLOCK: _hwmon(1_000_000, "freq1_input"),
    fields.MEM_CLOCK: _hwmon(1_000_000, "freq2_input"),
    fields.PCIE_REPLAY_COUNTER: _plain("pcie_replay_count"),
    fields.ECC_SBE_VOL_TOTAL: _errors("ce"),
    fields.ECC_DBE_VOL_TOTAL: _errors("ue"),
    fields.RETIRED_DBE: _bad_pages("R"),
    fields.RETIRED_PENDING: lambda device: min(1, _bad_pages("P")(device)),
}


DEADLINE_S = 5.0


class AmdTelemetry:
    """A ``Telemetry`` over amdgpu's files.

    ``root`` is where the host's ``/sys`` is found. ``deadline_s`` is how long one card
    may take for one group, or for being found: reading its files calls the card, which
    may hang.
    """

    def __init__(
        self, root: Path = Path("/"), *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._root = root
        self._calls = DeadlineCalls(deadline_s)
        self._knowing = threading.Lock()
        self._known: dict[CardUUID, AmdCard] = {}
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Look for cards: one that was known once stays listed under its index.

        ``NoCardsYet`` if amdgpu drives none now, or if listing them hangs.
        """
        folder = self._root / CARDS
        try:
            places = self._calls.run_one("places", partial(card_places, self._root))
        except DeadlineExceeded as error:
            raise NoCardsYet(f"{folder}: {error}") from error
        if not places:
            raise NoCardsYet(f"{folder} shows no card of the amdgpu driver")
        found = found_cards(
            self._calls.run({place: partial(described, place) for place in places})
        )
        with self._knowing:
            for one in found:
                if isinstance(one, AmdCard):
                    self._remember(one)
            cards = [one.card for one in self._known.values()]
        known = {card.bus for card in cards}
        left_out = tuple(
            one for one in found if isinstance(one, LeftOut) and one.name not in known
        )
        return Found(tuple(sorted(cards, key=lambda card: card.index)), left_out)

    def driver_version(self) -> str:
        """Return amdgpu's version; empty if it came with the kernel, or hangs."""
        version = partial(driver_version, self._root)
        try:
            return self._calls.run_one("version", version)
        except DeadlineExceeded:
            return ""

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read the files of each card."""
        wanted = sorted(fields)
        answers = self._calls.run(
            {
                (group, uuid): partial(_says, one, wanted)
                for uuid, one in self._all_known().items()
            }
        )
        return {
            uuid: CardAnswer(failure=_why(answer))
            if isinstance(answer, Exception)
            else answer
            for (_, uuid), answer in answers.items()
        }

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """List the compute processes; amdkfd tells only their memory."""
        answers = self._calls.run(
            {
                ("processes", uuid): partial(_processes_say, self._root, one)
                for uuid, one in self._all_known().items()
            }
        )
        return {
            uuid: ProcessesAnswer(known=False, failure=_why(answer))
            if isinstance(answer, Exception)
            else answer
            for (_, uuid), answer in answers.items()
        }

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait; only NVIDIA's cards report XIDs."""
        self._closed.wait(timeout_s)
        return None

    def close(self) -> None:
        """Wake the threads that wait for an event."""
        self._closed.set()

    def _all_known(self) -> Mapping[CardUUID, AmdCard]:
        with self._knowing:
            known = dict(self._known)
        if not known:
            self.cards()
            with self._knowing:
                known = dict(self._known)
        return known

    def _remember(self, one: AmdCard) -> None:
        known = self._known.get(one.card.uuid)
        taken = {other.card.index for other in self._known.values()}
        index = one.card.index
        if known is not None:
            index = known.card.index
        elif index in taken:
            index = max(taken) + 1
        self._known[one.card.uuid] = replace(one, card=replace(one.card, index=index))


class _Gone(Exception):
    """The card is not in its place any more."""


def _find(one: AmdCard) -> None:
    if not is_there(one):
        raise _Gone(f"{one.card.bus} is not there any more")


def _says(one: AmdCard, wanted: Collection[str]) -> CardAnswer:
    """Read each field; one that cannot be read now is only missing."""
    _find(one)
    values: dict[str, float] = {}
    unsupported: set[str] = set()
    why = ""
    for name in wanted:
        try:
            values[name] = value(one.device, name)
        except NotThere:
            unsupported.add(name)
        except OSError as error:
            why = _why(error)
    if why and not values:
        return CardAnswer(failure=why)
    return CardAnswer(values, frozenset(unsupported))


def _processes_say(root: Path, one: AmdCard) -> ProcessesAnswer:
    _find(one)
    try:
        listed = processes(root, one)
    except NotThere:
        return ProcessesAnswer(known=False, sm_source=SmSource.CARD)
    return ProcessesAnswer(listed, SmSource.CARD)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
