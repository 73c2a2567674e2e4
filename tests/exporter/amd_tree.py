"""A tree of files as amdgpu and amdkfd make it under ``/sys``."""

import struct
from pathlib import Path

from tests.deviceplugin.driver_files import DriverFiles

MIB = 2**20
UNIQUE = "2151e1bb9ee21440"
BUS = "0000:{:02x}:00.0"
HOST_BRIDGE = "cpu_cores_count 64\nlocation_id 0\n"


class AmdFiles(DriverFiles):
    """One card's folder."""

    def metrics(self, revision: tuple[int, int], at: int, energy: int) -> None:
        """The binary file of a revision, with all ones but for the energy."""
        table = bytearray(b"\xff" * 128)
        struct.pack_into("<HBB", table, 0, len(table), *revision)
        struct.pack_into("<Q", table, at, energy)
        (self.root / "gpu_metrics").write_bytes(table)

    def spoil(self, name: str) -> None:
        """Let reading it fail, whoever reads, as a card in reset does."""
        (self.root / name).unlink(missing_ok=True)
        (self.root / name).mkdir(parents=True)


class AmdTree:
    """A host's root. Cards are known by their number, as in ``card0``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.drm = root / "sys/class/drm"
        self.kfd = root / "sys/class/kfd/kfd"
        self.drm.mkdir(parents=True)
        (root / "sys/module/amdgpu").mkdir(parents=True)

    def start_kfd(self) -> None:
        (self.kfd / "proc").mkdir(parents=True)
        self.kfd_node(0, 0, HOST_BRIDGE)

    def card(
        self,
        number: int,
        *,
        bus: int | None = None,
        unique: str = "",
        memory_mib: int = 16384,
        used_mib: int = 0,
        driver: str = "amdgpu",
    ) -> AmdFiles:
        """A card that tells what every card does; ``write`` adds the rest."""
        place = 3 + number if bus is None else bus
        made = AmdFiles(self.drm / f"card{number}" / "device")
        slot = BUS.format(place)
        made.write("uevent", f"DRIVER={driver}\nPCI_ID=1002:73BF\nPCI_SLOT_NAME={slot}")
        made.write("device", "0x73bf")
        made.write("mem_info_vram_total", memory_mib * MIB)
        made.write("mem_info_vram_used", used_mib * MIB)
        made.write("gpu_busy_percent", 0)
        made.write(f"drm/renderD{128 + number}/dev", f"226:{128 + number}")
        node = f"MAJOR=226\nMINOR={number}\nDEVNAME=dri/card{number}\n"
        (made.root.parent / "uevent").write_text(node)
        connector = self.drm / f"card{number}-DP-1"
        connector.mkdir()
        (connector / "device").symlink_to(made.root.parent)
        if unique:
            made.write("unique_id", unique)
        return made

    def kfd_card(self, node: int, kfd_id: int, bus: int, *, part: int = 0) -> None:
        """Let amdkfd know a card; each part of a split one has a node of its own."""
        self.kfd_node(node, kfd_id, f"location_id {bus << 8 | part << 28}\ndomain 0\n")

    def process(self, pid: int, **mib: float) -> None:
        """Let a compute process have memory: ``process(7, id_51=512)``."""
        folder = self.kfd / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        for kfd_id, size in mib.items():
            path = folder / f"vram_{kfd_id.removeprefix('id_')}"
            path.write_text(f"{int(size * MIB)}\n")

    def kfd_node(self, node: int, kfd_id: int, facts: str) -> None:
        folder = self.kfd / "topology/nodes" / str(node)
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{kfd_id}\n")
        (folder / "properties").write_text(facts)


def full_card(tree: AmdTree) -> AmdFiles:
    """A data-centre card that tells all that there is a file for."""
    card = tree.card(0, unique=UNIQUE, memory_mib=65520, used_mib=1024)
    for name, text in {
        "product_name": "AMD Instinct MI210",
        "gpu_busy_percent": 87,
        "mem_busy_percent": 12,
        "pcie_replay_count": 3,
        "hwmon/hwmon4/temp1_input": 41000,
        "hwmon/hwmon4/temp2_input": 52000,
        "hwmon/hwmon4/temp3_input": 47000,
        "hwmon/hwmon4/power1_average": 215_000_000,
        "hwmon/hwmon4/freq1_input": 1_700_000_000,
        "hwmon/hwmon4/freq2_input": 1_600_000_000,
        "ras/umc_err_count": "ue: 1\nce: 20",
        "ras/gfx_err_count": "ue: 0\nce: 2",
        "ras/gpu_vram_bad_pages": (
            "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : R\n"
            "0x00000003 : 0x00001000 : P"
        ),
    }.items():
        card.write(name, text)
    # What amdgpu has no errors of it refuses to read.
    (card.root / "ras/hdp_err_count").symlink_to("nowhere")
    card.metrics((1, 3), 24, 5 * 65536)
    return card
