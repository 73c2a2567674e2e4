"""One node: its own network, files and processes, with containerd and a kubelet."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.testbed.kubeadm import cgroups, files, image_store
from tests.testbed.kubeadm.instances import INOTIFY
from tests.testbed.kubeadm.namespaces import HERE, InsideProcess, Namespaces, succeeded
from tests.testbed.kubeadm.programs import Programs
from tests.testbed.process import Launcher, ProcessDiedError
from tests.testbed.rest import Json


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

    def kill_program(self, name: str) -> None:
        """Kill whatever was started as this program, in containers too.

        A static pod's container is started again by kubelet.
        """
        found = [
            str(pid)
            for pid, words in self.command_lines().items()
            if Path(words[0]).name == name
        ]
        self.must("kill", "-KILL", *found)

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


def unmount_all(spaces: Namespaces, below: tuple[str, ...]) -> None:
    """Undo every mount below these folders, the youngest first; ``/run`` itself too."""
    lines = Path(f"/proc/{spaces.pid}/mountinfo").read_text().splitlines()
    for line in reversed(lines):
        point = line.split()[4]
        if point == "/run" or point.startswith(tuple(f"{top}/" for top in below)):
            spaces.run(["umount", "--lazy", point])


KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
KUBELET_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
KUBELET_KUBECONFIG = "/etc/kubernetes/kubelet.conf"
BOOTSTRAP_KUBECONFIG = "/etc/kubernetes/bootstrap-kubelet.conf"
PROXY_CONFIG = "/etc/kubernetes/kube-proxy.yaml"


class Node(Host):
    def __init__(
        self,
        launcher: Launcher,
        programs: Programs,
        name: str,
        folder: Path,
        address: str,
        cgroup: str,
    ) -> None:
        super().__init__(launcher, name, folder, cgroup, programs.path)
        self._images = folder / "var/lib/containerd"
        self.address = address
        self._programs = programs

    @property
    def cdi_dir(self) -> Path:
        """The folder of CDI specs that both runtimes read, as seen from here."""
        return self.path(files.CDI_SPECS)

    def write_cdi(self, spec: Json, name: str = "gpushare.json") -> Path:
        self.write(f"{files.CDI_SPECS}/{name}", json.dumps(spec, indent=2))
        return self.cdi_dir / name

    def start_containerd(self) -> InsideProcess:
        containerd = self._programs.runtime.path("containerd")
        flags = ["--config=/etc/containerd/config.toml", "--log-level=warn"]
        process = self.launch("containerd", [containerd, *flags], folder=Path("/"))
        # Its socket answers when every plugin of it is up, or has failed.
        process.wait_ready(self._containerd_answers)
        ctr = self._programs.runtime.path("ctr")
        if "Error:" in self.must(ctr, "plugins", "ls", "--detailed", "id==cri"):
            words = "containerd runs without CRI, which kubelet needs; if there are "
            words += f'"too many open files", raise the sysctl {INOTIFY}'
            raise ProcessDiedError(f"{words}{process.log_tail()}")
        return process

    def take_images(self, archives: Sequence[Path]) -> None:
        """Have these images when containerd starts for the first time."""
        cache = self._programs.images.folder.parent
        runtime = self._programs.runtime.folder.name
        image_store.fill(
            self._images, archives, cache, lambda: self._unpack(archives), runtime
        )

    def _unpack(self, archives: Sequence[Path]) -> None:
        containerd = self.start_containerd()
        self.import_images(archives)
        containerd.stop()

    def kill_containerd(self) -> None:
        """Kill containerd; its containers go on, as they do on any node."""
        self.processes["containerd"].kill()

    def start_kubelet(self) -> InsideProcess:
        flags = self.path(KUBELET_FLAGS).read_text().partition("=")[2]
        kubelet = self._programs.node.path("kubelet")
        command = [
            kubelet,
            f"--config={KUBELET_CONFIG}",
            f"--kubeconfig={KUBELET_KUBECONFIG}",
            f"--bootstrap-kubeconfig={BOOTSTRAP_KUBECONFIG}",
            f"--cgroup-root=/{self.cgroup}",
            *shlex.split(flags.strip().strip('"')),
        ]
        return self.launch("kubelet", command, folder=Path("/"))

    def kill_kubelet(self) -> None:
        self.processes["kubelet"].kill()

    def restart_kubelet(self) -> InsideProcess:
        self.kill_kubelet()
        return self.start_kubelet()

    def kubeadm(self, action: str, *flags: str) -> None:
        """Run kubeadm, and start the kubelet once kubeadm has configured it."""
        kubeadm = self._programs.node.path("kubeadm")
        process = self.launch("kubeadm", [kubeadm, action, *flags], folder=Path("/"))
        process.wait_ready(self._kubelet_configured)
        self.start_kubelet()
        code = process.popen.wait(300)
        if code != 0:
            kubelet = self.processes["kubelet"].log_tail()
            words = f"kubeadm {action}: {code}{process.log_tail()}{kubelet}"
            raise AssertionError(words)

    def import_images(self, archives: Sequence[Path]) -> None:
        with ThreadPoolExecutor(2) as at_once:
            list(at_once.map(self._import_image, archives))

    def power_cut(self) -> None:
        """End every process of the node at once, and what lives in memory alone."""
        self.spaces.end_processes()
        for process in self.processes.values():
            process.popen.wait()
        unmount_all(self.spaces, ("/var/lib/kubelet", "/run", "/var/lib/containerd"))
        self.must("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        self.run(["ip", "link", "delete", "cni0"])
        cgroups.empty(self.cgroup)

    def reboot(self) -> None:
        """Cut the power and start containerd and the kubelet again, without waiting.

        Files stay; whatever else ran on the node (``launch``) has to be started anew.
        """
        self.power_cut()
        self.start_containerd()
        self.start_kubelet()
        if "kube-proxy" in self.processes:
            self.start_proxy()

    def start_proxy(self) -> InsideProcess:
        proxy = self._programs.node.path("kube-proxy")
        command = [proxy, f"--config={PROXY_CONFIG}"]
        return self.launch("kube-proxy", command, folder=Path("/"))

    def configure(self, pods: str) -> None:
        nvidia = self._programs.nvidia.path("nvidia-container-runtime")
        pause = self._programs.images.pause_name
        containerd = files.containerd_toml(nvidia, pause)
        self.write("/etc/containerd/config.toml", containerd)
        self.write("/etc/cni/net.d/10-pods.conflist", files.cni_conflist(pods))
        self.write("/etc/nvidia-container-runtime/config.toml", files.nvidia_toml())

    def _import_image(self, archive: Path) -> None:
        ctr = self._programs.runtime.path("ctr")
        command = [ctr, "-n", "k8s.io", "images", "import", "--local", "-"]
        # By way of stdin, because the archive may lie where the node sees other files.
        with archive.open("rb") as stdin:
            done = subprocess.run(
                self.spaces.enter(command),
                stdin=stdin,
                capture_output=True,
                text=True,
                check=False,
            )
        succeeded(done)

    def _containerd_answers(self) -> bool:
        ctr = self._programs.runtime.path("ctr")
        return self.run([ctr, "--timeout=2s", "version"]).returncode == 0

    def _kubelet_configured(self) -> bool:
        conf = (KUBELET_KUBECONFIG, BOOTSTRAP_KUBECONFIG)
        known_by = [path for path in conf if self.path(path).exists()]
        written = (KUBELET_CONFIG, KUBELET_FLAGS)
        return bool(known_by) and all(self.path(path).exists() for path in written)
