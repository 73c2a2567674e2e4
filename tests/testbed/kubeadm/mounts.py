"""The mounts of a node, as a power cut would undo them."""

from pathlib import Path

from tests.testbed.kubeadm.namespaces import Namespaces


def unmount_all(spaces: Namespaces, below: tuple[str, ...]) -> None:
    """Undo every mount below these folders, the youngest first; ``/run`` itself too."""
    lines = Path(f"/proc/{spaces.pid}/mountinfo").read_text().splitlines()
    for line in reversed(lines):
        point = line.split()[4]
        if point == "/run" or point.startswith(tuple(f"{top}/" for top in below)):
            spaces.run(["umount", "--lazy", point])
