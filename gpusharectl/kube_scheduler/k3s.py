"""kube-scheduler on a server of k3s, which has it inside itself.

``K3sScheduler`` is ``KubeadmScheduler``'s sister: the same verbs on
``/etc/rancher/k3s/config.yaml``. k3s reads its files only when it starts, so ``apply``
alone changes nothing yet: with ``restart`` it is restarted, else ``restart_command``
says what is left to do.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects
from gpusharectl.kube_scheduler.files import Asked, SchedulerFiles
from gpusharectl.kube_scheduler.flavours import ARGS, K3sFile, settings
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles, Obstacle
from gpusharectl.kube_scheduler.kubeadm import Patience
from gpusharectl.kube_scheduler.verify import Say, probed

_DROP_INS = "/etc/rancher/k3s/config.yaml.d"
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_OPENRC = "/etc/init.d"

Run = Callable[[Sequence[str]], str]
"""Run a command of the host; its last words where it failed, else empty."""


class K3sScheduler:
    """One server's kube-scheduler; ``node`` is what the cluster calls the server."""

    def __init__(
        self,
        files: HostFiles,
        objects: Objects,
        node: str,
        asked: Asked,
        run: Run | None = None,
        patience: Patience | None = None,
    ) -> None:
        """``run`` restarts k3s; without it nobody does."""
        self._host = files
        self._objects = objects
        self._node = node
        self._run = run
        self._patience = patience or Patience()
        self._files = SchedulerFiles(files, K3sFile(), asked)
        self._applied: Sequence[FileChange] = ()
        self._unread = False
        """Whether files have changed that k3s has not been told to read."""

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to write; none where all is as wanted."""
        elsewhere = self._set_elsewhere()
        return Obstacle(elsewhere) if elsewhere else self._files.plan()

    def restore(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to put back or remove; none where nothing is ours."""
        return self._files.restore()

    def missing(self) -> str:
        """Say in words if our configuration was here and someone undid it."""
        return self._files.missing()

    def check(self, plan: Sequence[FileChange]) -> str:  # noqa: ARG002
        """Say nothing against it: there is no kube-scheduler but the one in k3s."""
        return ""

    def apply(self, plan: Sequence[FileChange]) -> None:
        """Write what ``plan`` or ``restore`` gave; ``OSError`` where that fails."""
        self._applied = tuple(plan)
        self._unread = self._unread or bool(plan)
        self._files.make(plan)

    def roll_back(self) -> None:
        """Put the files back as they were before the last ``apply``."""
        self._unread = True
        self._files.make([each.reversed() for each in reversed(self._applied)])
        self._applied = ()

    def wait(self, say: Say) -> str:
        """Restart k3s where files have changed and we may; why it failed, else ""."""
        if not self._unread:
            return ""
        command = self.restart_command()
        if self._run is None:
            say(f"k3s reads this when it starts; now run: {' '.join(command)}")
            return ""
        say(" ".join(command))
        failed = self._run(command)
        if failed:
            return f"{' '.join(command)}: {failed}"
        self._unread = False
        say("k3s is to answer again")
        return self._answered()

    def probe(self) -> str:
        """Prove the way through the extender; why there is none, else "".

        Nothing is proved as long as k3s has not read what was written.
        """
        if self._unread:
            return ""
        patience = self._patience
        image = "gpushare-scheduler-probe:none"
        why = probed(self._objects, self._node, image, patience.pace, patience.probe_s)
        command = " ".join(self.restart_command())
        return f"{why}; if k3s was not restarted since, run: {command}" if why else ""

    def restart_command(self) -> Sequence[str]:
        """Give the command that restarts k3s here, by the unit that is found."""
        for folder in _UNITS:
            for name in self._host.names(folder):
                unit = name.removesuffix(".service")
                if _is_server(unit) and unit != name:
                    return ("systemctl", "restart", unit)
        for name in self._host.names(_OPENRC):
            if _is_server(name):
                return ("rc-service", name, "restart")
        return ("systemctl", "restart", "k3s")

    def _answered(self) -> str:
        """Wait for the API server, which is gone while k3s restarts."""
        seconds = self._patience.wait_s
        try:
            seen = self._patience.pace.until(self._objects.version, seconds)
        except ClusterError as error:
            return f"k3s has restarted, and refuses us: {error}"
        return "" if seen else f"k3s gives no answer within {seconds:g} s"

    def _set_elsewhere(self) -> str:
        """Say where else kube-scheduler's configuration is named, and would win."""
        for name in self._host.names(_DROP_INS):
            path = f"{_DROP_INS}/{name}"
            if not name.endswith((".yaml", ".yml")):
                continue
            body = settings((self._host.read(path) or b"").decode(errors="replace"))
            if not isinstance(body, dict):
                continue
            if ARGS in body or "config=" in str(body.get(f"{ARGS}+", "")):
                return (
                    f"{path} sets {ARGS}, which wins over that of {K3sFile.path}: "
                    "move its arguments there"
                )
        for folder in _UNITS:
            for name in self._host.names(folder):
                path = f"{folder}/{name}"
                if _is_server(name.partition(".")[0]) and self._names_config(path):
                    return (
                        f"{path} gives --{ARGS} config=, which wins over "
                        f"{K3sFile.path}: move it there and run systemctl daemon-reload"
                    )
        return ""

    def _names_config(self, path: str) -> bool:
        try:
            text = (self._host.read(path) or b"").decode(errors="replace")
        except IsADirectoryError:
            return False
        words = text.replace("'", " ").replace('"', " ").replace("=", " ").split()
        pairs = pairwise(words)
        return any(
            one == f"--{ARGS}" and other.lstrip("-") == "config" for one, other in pairs
        )


def _is_server(unit: str) -> bool:
    return unit == "k3s" or (unit.startswith("k3s-") and "agent" not in unit)
