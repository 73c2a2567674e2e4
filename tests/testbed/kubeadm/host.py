"""One computer of a cluster: files, network and processes of its own."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.kubeadm import cgroups
from tests.testbed.kubeadm.namespaces import HERE, InsideProcess, Namespaces, succeeded
from tests.testbed.process import Launcher


class Host:
    """What any program on it takes for a whole computer; every path is as usual."""

    def __init__(
        self, launcher: Launcher, name: str, folder: Path, cgroup: str, path: str
    ) -> None:
        """Start it: ``folder`` gets its files, ``path`` is its processes' PATH."""
        self.name = name
        self.cgroup = cgroup
        self.processes: dict[str, InsideProcess] = {}
        self._environment = {**os.environ, "PATH": path}
        folder.mkdir(parents=True)
        cgroups.make(cgroup)
        first = [sys.executable, "-IS", str(HERE / "first_process.py")]
        prepare = ["sh", str(HERE / "node_root.sh"), str(folder), name]
        self.spaces = Namespaces(launcher, name, [*prepare, *first])
        log = self.spaces.holder.log
        self.spaces.holder.wait_ready(lambda: "node ready" in log.read_text())

    def path(self, inside: str | Path) -> Path:
        """Say where a file of the node is seen from here; good until it closes."""
        return self.spaces.path(inside)

    def run(
        self, command: Sequence[str], stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a short command on the node to its end; look at its ``returncode``."""
        return self.spaces.run(command, self._environment, stdin)

    def must(self, *command: str) -> str:
        """Run a short command on the node and give its output; it has to succeed."""
        return succeeded(self.run(command))

    def command_lines(self) -> dict[int, list[str]]:
        """Give what every process was started by, containers' too, by its id here."""
        found = {}
        for path in self.path("/proc").glob("[0-9]*/cmdline"):
            # It may have ended since its folder was listed.
            with contextlib.suppress(OSError):
                if text := path.read_text(errors="replace"):
                    found[int(path.parent.name)] = text.rstrip("\0").split("\0")
        return found

    def launch(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> InsideProcess:
        """Start a process of the node, which logs to ``<node>.<name>.log``.

        ``environment`` comes on top of this program's own; ``folder`` is where it
        runs, this program's own by default. It dies with the node's reboot.
        """
        placed = ["env", f"--chdir={folder or Path.cwd()}", *command]
        own = {**self._environment, **(environment or {})}
        process = self.spaces.launch(name, placed, own)
        self.processes[name] = process
        return process

    def write(self, inside: str, text: str) -> None:
        """Write a file on the node, whole at once for whoever watches its folder.

        Its first name begins with a dot, which all those watchers pass over.
        """
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.parent / f".{path.name}.new"
        unfinished.write_text(text)
        unfinished.replace(path)

    def close(self) -> None:
        """End every process of the node; mounts and network vanish with them."""
        self.spaces.close()
