"""Drive the stub: its cards, what befalls them, and how containers get them (CDI)."""

import math
import os
import platform
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pynvml
import pytest

from tests.nvml.build import SONAME, STATE_VARIABLE, Stub

MIB = 2**20
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
VERSION = "550.54.15"
BLANK = math.inf
"""Among ``values``: NVML's all ones, for what it cannot tell."""

Kind = Literal["compute", "graphics", "mps"]


@dataclass(frozen=True, slots=True)
class StubCard:
    """One card of the stub; ``odd_bytes`` are what its memory is above whole MiB."""

    uuid: str
    memory_mib: int = 7611
    used_mib: int = 0
    reserved_mib: int = 0
    model: str = "Tesla P4"
    bus: str = "00000000:00:04.0"
    minor: int = 0
    mig: bool = False
    odd_bytes: int = 0

    def line(self) -> str:
        total = self.memory_mib * MIB + self.odd_bytes
        memory = f"{total} {self.reserved_mib * MIB} {self.used_mib * MIB}"
        place = f"{self.bus} {self.minor} {int(self.mig)}"
        return f"card {self.uuid} {memory} {place} {self.model}"


@dataclass(frozen=True, slots=True)
class StubInstance:
    """One MIG instance of a card; its ``place`` is where the card lists it."""

    uuid: str
    card: str
    place: int
    gi: int
    ci: int = 0
    slices: int = 1
    memory_mib: int = 4864
    used_mib: int = 0
    reserved_mib: int = 0
    model: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"

    def line(self) -> str:
        memory = [self.memory_mib, self.reserved_mib, self.used_mib]
        amounts = " ".join(str(mib * MIB) for mib in memory)
        place = f"{self.place} {self.gi} {self.ci} {self.slices}"
        return f"instance {self.uuid} {self.card} {place} {amounts} {self.model}"


def stub_instance(card: StubCard, place: int, **others: object) -> StubInstance:
    """An instance with a UUID and a GPU instance id of its own."""
    made = f"MIG-{uuid.uuid5(uuid.NAMESPACE_DNS, f'stub/{card.uuid}/{place}')}"
    # As on an A100: instances of one slice have ids from 7 on.
    instance = StubInstance(made, card.uuid, place, gi=7 + place)
    return replace(instance, **others)  # type: ignore[arg-type]


def stub_card(number: int, **others: object) -> StubCard:
    """A card with a UUID, a bus address and a minor number of its own."""
    made = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'stub/{number}')}"
    card = StubCard(made, bus=f"00000000:00:{4 + number:02X}.0", minor=number)
    return replace(card, **others)  # type: ignore[arg-type]


class StubDriver:
    """Writes the driving file ``folder/driver``, whole and at once, at each change."""

    def __init__(self, folder: Path, cards: Sequence[StubCard] = ()) -> None:
        self.path = folder / "driver"
        self.cards = list(cards)
        self.instances: list[StubInstance] = []
        self._load = 1
        self._upgrades = 0
        self._lines: dict[str, str] = {"version": VERSION}
        self._facts: dict[str, str] = {}
        self._samples: list[str] = []
        self._events: list[str] = []
        self._write()

    def set_cards(self, cards: Sequence[StubCard]) -> None:
        self.cards = list(cards)
        self._write()

    def set_instances(self, *instances: StubInstance) -> None:
        """Cut the cards in MIG mode into these instances; none for no instances."""
        self.instances = list(instances)
        self._write()

    def change(self, number: int, **others: object) -> None:
        """Change some of a card's fields, as ``used_mib``."""
        changed = replace(self.cards[number], **others)  # type: ignore[arg-type]
        self.cards[number] = changed
        self._write()

    def fail(self, uuid: str, function: str, code: int) -> None:
        """Let one function, or all (``*``), fail for one card or for all.

        Or one part of an answer: ``FieldValue/82``, ``GpmMetric/2``.
        """
        self._set(f"fail {uuid} {function}", str(code))

    def lose(self, uuid: str) -> None:
        self.fail(uuid, "*", LOST)

    def drop(self, uuid: str) -> None:
        """Lose a card for everybody who asks, until he opens the driver anew."""
        self._set(f"lost {uuid}", "")

    def find(self, uuid: str) -> None:
        """Take back ``lose`` or ``drop``."""
        self._lines.pop(f"lost {uuid}", None)
        self._unset(f"fail {uuid} *")

    def hang(self, uuid: str = "*", function: str = "*") -> None:
        """Let calls hang until ``let_go``; ``*`` and no card: the driver's own too."""
        self._set(f"hang {uuid} {function}", "")

    def let_go(self) -> None:
        self._lines = {
            key: line for key, line in self._lines.items() if not key.startswith("hang")
        }
        self._write()

    def unload(self, code: int = NOT_LOADED) -> None:
        """Take the driver away; ``code`` is what opening it says from now on."""
        self._set("init", str(code))

    def load(self) -> None:
        """Load the driver anew: whoever had it open must open it again."""
        self._load += 1
        self._unset("init")

    def upgrade(self) -> None:
        """Load another version: who opened the driver before has the old library."""
        self._upgrades += 1
        self._set("upgrade", str(self._upgrades))
        self.load()

    def break_count(self, code: int) -> None:
        self._set("count", str(code))

    def xid(self, uuid: str | None, xid: int) -> None:
        """Report a fault of a card, or of none in particular."""
        self._events.append(f"event {len(self._events) + 1} {uuid or '-'} {xid}")
        self._write()

    def set_version(self, version: str) -> None:
        self._set("version", version)

    def values(self, uuid: str, **numbers: float | None) -> None:
        """Let a card, or all (``*``), tell these; None is not supported.

        The names, in NVML's units, and what is told else are in ``state.h``.
        """
        for name, number in numbers.items():
            told = "-" if number is None else f"{number:.17g}"
            self._facts[f"value {uuid} {name}"] = told
        self._write()

    def process(
        self, uuid: str, pid: int, mib: float | None = 256, kind: Kind = "compute"
    ) -> None:
        """Let a process be on a card; None where the driver cannot tell its memory.

        The card's own ``used_mib`` stays as it is.
        """
        told = "-" if mib is None else str(int(mib * MIB))
        self._facts[f"process {uuid} {kind} {pid}"] = told
        self._write()

    def busy(
        self,
        uuid: str,
        pid: int,
        sm: int = 0,
        memory: int = 0,
        *,
        encoder: int = 0,
        decoder: int = 0,
    ) -> None:
        """Let a process keep a card busy (%) from now on; ``gpu_util`` stays."""
        self._facts[f"busy {uuid} {pid}"] = f"{sm} {memory} {encoder} {decoder}"
        self._write()

    def sample(
        self,
        uuid: str,
        pid: int,
        at: float,
        sm: int = 0,
        memory: int = 0,
        *,
        encoder: int = 0,
        decoder: int = 0,
    ) -> None:
        """Put one entry into the ring, of ``at`` in seconds since 1970."""
        told = f"{sm} {memory} {encoder} {decoder}"
        self._samples.append(f"sample {uuid} {int(at * 1e6)} {pid} {told}")
        self._write()

    def leave(self, uuid: str, pid: int) -> None:
        """End a process; what it did stays in the ring."""
        gone = {f"busy {uuid} {pid}"}
        gone |= {f"process {uuid} {kind} {pid}" for kind in Kind.__args__}  # type: ignore[attr-defined]
        self._facts = {k: told for k, told in self._facts.items() if k not in gone}
        self._write()

    def join(self, a: int, b: int, level: int, links: int = 0) -> None:
        """Put two cards under one part of PCIe, with so many NVLinks between them."""
        first, other = self.cards[a], self.cards[b]
        self._facts[f"joint {first.uuid} {other.uuid}"] = str(level)
        for _ in range(links):
            self.wire(first.uuid, other.bus)
            self.wire(other.uuid, first.bus)
        self._write()

    def wire(self, uuid: str, to: str, kind: int = 0) -> None:
        """Give a card one NVLink more, to this bus address or ``down``; 2: a switch."""
        before = sum(key.startswith(f"wire {uuid} ") for key in self._facts)
        self._facts[f"wire {uuid} {before}"] = f"{to} {kind}"
        self._write()

    def limits(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Give the soft and hard limits in MiB that were set, by card and group."""
        path = self.path.with_name(f"{self.path.name}.limits")
        lines = path.read_text().splitlines() if path.exists() else []
        told = (line.split(" ", 3) for line in lines)
        return {
            (card, group): (int(soft) // MIB, int(hard) // MIB)
            for card, soft, hard, group in told
        }

    def calls(self) -> int:
        """How many calls this process made on the library that is loaded now."""
        return int(pynvml.nvmlLib.nvmlStubCalls())

    def _set(self, key: str, value: str) -> None:
        self._lines[key] = value
        self._write()

    def _unset(self, key: str) -> None:
        self._lines.pop(key, None)
        self._write()

    def _write(self) -> None:
        lines = [f"load {self._load}"]
        lines += [f"{key} {value}" for key, value in self._lines.items()]
        lines += [card.line() for card in (*self.cards, *self.instances)]
        lines += [f"{key} {told}" for key, told in self._facts.items()]
        # The stub reads no more of them.
        lines += [*self._samples, *self._events[-64:]]
        unfinished = self.path.with_name(f"{self.path.name}.unfinished")
        unfinished.write_text("\n".join(lines) + "\n")
        unfinished.replace(self.path)


@contextmanager
def in_process(library: Path, state: Path) -> Iterator[None]:
    """Let the real pynvml call a stub library in this process.

    pynvml loads its library once and for ever, so two of them in one process need this
    hand in its two global variables; ``tests/gpushare/cards/test_nvml_cards.py``
    loads the stub in a process of its own too, as pynvml itself would.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STATE_VARIABLE, str(state))
        patch.setattr(pynvml, "nvmlLib", pynvml.CDLL(str(library)))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        yield


@contextmanager
def stub_driver(
    stub: Stub,
    folder: Path,
    cards: Sequence[StubCard] = (),
    *,
    old: bool = False,
    middle: bool = False,
) -> Iterator[StubDriver]:
    """A stub driver with these cards, in this process; nothing hangs afterwards."""
    driver = StubDriver(folder, cards)
    library = stub.old_library if old else stub.library
    with in_process(stub.middle_library if middle else library, driver.path):
        yield driver
        driver.let_go()


KIND = "nvidia.com/gpu"
INSIDE = "/run/nvidia-stub"
READ_ONLY = ["ro", "nosuid", "nodev", "bind"]

Marks = Literal["markers", "nodes"]
"""What shows a card inside: a marker file, or its device node (made by root alone)."""


def cdi_spec(
    stub: Stub,
    state: Path,
    cards: Sequence[StubCard | StubInstance],
    folder: Path,
    marks: Marks = "markers",
) -> dict[str, Any]:
    """Give the specification, and make in ``folder`` what it refers to on this node.

    ``state`` is the driving file: its folder is mounted and not the file, which is
    written anew at each change. Devices are named by UUID; ``all`` has every card.
    """
    shown = {card.uuid: _shown(card, folder, marks) for card in cards}
    shared = [
        _mount(stub.smi, "/usr/bin/nvidia-smi"),
        _mount(state.parent, f"{INSIDE}/state"),
    ]
    every: dict[str, list[Any]] = {}
    for edits in shown.values():
        for what, ones in edits.items():
            every.setdefault(what, []).extend(ones)
    devices = [*shown.items(), *([("all", every)] if every else [])]
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "containerEdits": {"mounts": shared},
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices],
    }


def with_library(spec: dict[str, Any], stub: Stub) -> dict[str, Any]:
    """Let every container of the specification have the driver's library, too.

    As the real one has: whoever is given cards can ask NVML for them.
    """
    edits = spec["containerEdits"]
    inside = f"/usr/lib/{platform.machine()}-linux-gnu/{SONAME}"
    mounts = [*edits["mounts"], _mount(stub.library, inside)]
    state = f"{STATE_VARIABLE}={INSIDE}/state/driver"
    return {**spec, "containerEdits": {**edits, "mounts": mounts, "env": [state]}}


def _shown(
    card: StubCard | StubInstance, folder: Path, marks: Marks
) -> dict[str, list[Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    if marks == "markers" or isinstance(card, StubInstance):
        marker = folder / card.uuid
        marker.touch()
        return {"mounts": [_mount(marker, f"{INSIDE}/cards/{card.uuid}")]}
    node = folder / f"nvidia{card.minor}"
    if not node.exists():
        # Any character device will do; this one is /dev/null's likeness.
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return {
        "deviceNodes": [{"path": f"/dev/nvidia{card.minor}", "hostPath": str(node)}]
    }


def _mount(host: Path, inside: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": inside, "options": READ_ONLY}
