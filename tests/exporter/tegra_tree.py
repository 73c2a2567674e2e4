"""A tree of files as a Jetson's kernel makes it under ``/sys`` and ``/proc``.

The layouts are those that programs for Jetsons read (jetson-stats, glances, htop); none
was copied from a Jetson here.
"""

from pathlib import Path

from tests.deviceplugin.driver_files import DriverFiles

CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"
HEADER = "CLIENT                        PROCESS      PID        SIZE"


class TegraTree(DriverFiles):
    """A host's root."""

    def gpu(self, node: str, load: int | None = 0, link: str = "") -> None:
        """The GPU's folder under ``sys/devices``; ``link`` is another name of it."""
        folder = self.root / "sys/devices" / node
        folder.mkdir(parents=True, exist_ok=True)
        if load is not None:
            (folder / "load").write_text(f"{load}\n")
        if link:
            other = self.root / "sys/devices" / link
            other.parent.mkdir(parents=True, exist_ok=True)
            other.symlink_to(folder)

    def zones(self, **temperatures: object) -> None:
        """Thermal zones by their types, with millidegrees."""
        for number, (kind, millidegrees) in enumerate(temperatures.items()):
            zone = f"sys/class/thermal/thermal_zone{number}"
            self.write(f"{zone}/type", kind.replace("_", "-"))
            self.write(f"{zone}/temp", millidegrees)

    def memory(self, total_mib: int, available_mib: int) -> None:
        self.write(
            "proc/meminfo",
            f"MemTotal:       {total_mib * 1024} kB\n"
            f"MemFree:        {available_mib * 512} kB\n"
            f"MemAvailable:   {available_mib * 1024} kB\n"
            "HugePages_Total:       0",
        )

    def clients(self, *lines: str, header: str = HEADER) -> None:
        """What ``nvmap`` knows, as root sees it in debugfs."""
        self.write(CLIENTS, "\n".join([header, *lines]))


def orin(root: Path) -> TegraTree:
    """An AGX Orin with JetPack 6, at work."""
    tree = TegraTree(root)
    tree.gpu("platform/bus@0/17000000.gpu", 437, link="platform/gpu.0")
    tree.zones(cpu_thermal=51000, gpu_thermal=48500, tj_thermal=52000)
    tree.memory(62840, 50000)
    tree.write(
        "sys/firmware/devicetree/base/model", "NVIDIA Jetson AGX Orin Developer Kit\0"
    )
    tree.clients(
        "user                  VLLM::EngineCor  1792595   4096000K",
        "user                             Xorg     2651      18432K",
        "user                   nvargus-daemon     1012          0K",
        "total                                              4114432K",
    )
    return tree
