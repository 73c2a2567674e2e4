"""A bare Kubernetes control plane: etcd and kube-apiserver, and more on request."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Self

from gpushare.addresses import find_free_address
from tests.testbed import scheduler
from tests.testbed.audit import AuditLog, Level, write_policy
from tests.testbed.binaries import Binaries
from tests.testbed.credentials import User, write_kubeconfig, write_tokens
from tests.testbed.process import Launcher, Process
from tests.testbed.rest import Rest
from tests.testbed.scheduler import (
    Scheduler,
    SchedulerSettings,
    apiserver_flags,
    controller_manager_flags,
    etcd_flags,
)

CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
)


class ControlPlane:
    """Runs a control plane in a folder of its own; leaving it ends every process.

    ``folder`` gets data, certificates and logs, and must be empty at first.
    """

    def __init__(
        self,
        binaries: Binaries,
        folder: Path,
        *,
        users: Sequence[User] = (),
        audit: Level = "Metadata",
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        self.binaries = binaries
        self.folder = folder
        self.admin = User("admin", ("system:masters",))
        self.scheduler_user = User("system:kube-scheduler")
        # One user for all controllers: their own roles would want service accounts.
        controllers = User("system:kube-controller-manager", ("system:masters",))
        # By its name alone: the API server runs without the rights of nodes.
        self.kubelet = User("system:node:here", ("system:masters",))
        ours = (self.admin, self.scheduler_user, controllers, self.kubelet)
        self.users = (*ours, *users)
        self.audit = AuditLog(folder / "audit.log")
        self.port = find_free_address().port
        self.rest = self.rest_as(self.admin.token)
        self.launcher = Launcher(folder)
        self._controllers = controllers
        self._audit_level = audit
        self._apiserver_flags = apiserver_flags
        self._etcd_port = find_free_address().port
        self._etcd_peer_port = find_free_address().port
        self._processes: dict[str, Process] = {}

        self._localhost = ""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def etcd(self) -> Rest:
        """Call etcd itself, past the API server, by its JSON gateway."""
        return Rest(self._etcd_port, tls=False)

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tokens(self.folder / "tokens.csv", self.users)
            write_policy(self.folder / "audit-policy.json", self._audit_level)
            self.start_etcd()
            self.start_apiserver()
        except BaseException:
            self.launcher.end_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.launcher.end_all()

    def rest_as(self, token: str) -> Rest:
        return Rest(self.port, token)

    def kubeconfig(self, token: str, name: str, *, insecure: bool = True) -> Path:
        """Write a kubeconfig; with ``insecure=False`` it names the certificate.

        As a cluster's does. urllib3 reads all that the system trusts for each
        connection where none is named, which takes 40 ms.
        """
        path = self.folder / f"{name}.kubeconfig"
        certificate = self.folder / "kube-apiserver-cert" / "apiserver.crt"
        named = None if insecure else certificate
        return write_kubeconfig(path, self.port, token, named)

    def start_etcd(self) -> Process:
        data = self.folder / "etcd-data"
        flags = etcd_flags(data, self._etcd_port, self._etcd_peer_port)
        process = self._start("etcd", flags)
        health = self.etcd
        process.wait_ready(lambda: health.get("/health")[0] == 200)
        return process

    def start_apiserver(self) -> Process:
        """Start kube-apiserver on its one port and its old data, and wait for it."""
        flags = apiserver_flags(self.folder, self.port, self._etcd_port)
        process = self._start("kube-apiserver", [*flags, *self._apiserver_flags])
        process.wait_ready(self._serves)
        return process

    @contextmanager
    def other_host(self, localhost: str) -> Iterator["ControlPlane"]:
        """Run one more API server on the same etcd, as a second host has.

        ``localhost`` is this address for it, such as ``127.0.0.2``: what listens there
        is on its own host. What is given starts schedulers that use this API server,
        and writes kubeconfigs for it. It takes root.
        """
        other = copy(self)
        other.port = find_free_address().port
        other.rest = other.rest_as(self.admin.token)
        other._processes, other._localhost = {}, localhost
        audit = f"--audit-log-path={self.folder / f'audit-{localhost}.log'}"
        other._apiserver_flags = (*self._apiserver_flags, audit)
        other.start_apiserver()
        try:
            yield other
        finally:
            for process in other._processes.values():
                process.kill()

    def stop_apiserver(self) -> None:
        """End kube-apiserver in an orderly way; ``start_apiserver`` brings it back."""
        self._processes["kube-apiserver"].stop()

    def kill(self, process: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send ``etcd``, ``kube-apiserver`` or ``kube-controller-manager`` a signal.

        After SIGKILL it waits until the process is gone.
        """
        self._processes[process].send(number)
        if number == signal.SIGKILL:
            self._processes[process].kill()

    def start_scheduler(
        self,
        name: str = "kube-scheduler",
        *,
        extender_url: str | None = None,
        settings: SchedulerSettings | None = None,
    ) -> Scheduler:
        """Start one more kube-scheduler, which also is a context manager.

        ``extender_url`` is the whole prefix: ``http://127.0.0.1:39999/scheduler``.
        """
        chosen = settings or SchedulerSettings()
        kubeconfig = self.kubeconfig(self.scheduler_user.token, name)
        return scheduler.start(
            self.launcher,
            [self.binaries.path("kube-scheduler"), *chosen.flags],
            name,
            scheduler.configuration(kubeconfig, extender_url, chosen),
        )

    def start_controller_manager(
        self, controllers: Sequence[str] = CONTROLLERS, *, qps: int = 200
    ) -> Process:
        """Start kube-controller-manager with only these controllers."""
        port = find_free_address().port
        name = "kube-controller-manager"
        kubeconfig = self.kubeconfig(self._controllers.token, name)
        flags = controller_manager_flags(kubeconfig, port, controllers, qps)
        process = self._start(name, flags)
        health = Rest(port)
        process.wait_ready(lambda: health.get("/healthz")[0] == 200)
        return process

    def _start(self, name: str, flags: Sequence[str]) -> Process:
        command, log = [self.binaries.path(name), *flags], name
        if self._localhost:
            log = f"{name}-{self._localhost}"
            hosts = self.folder / f"hosts-{self._localhost}"
            hosts.write_text(f"{self._localhost} localhost\n")
            script = 'mount --bind "$0" /etc/hosts && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, str(hosts), *command]
        process = self.launcher.start(log, command)
        self._processes[name] = process
        return process

    def _serves(self) -> bool:
        ready = self.rest.get("/readyz")[0] == 200
        # /readyz does not wait for the namespace that most tests use.
        return ready and self.rest.get("/api/v1/namespaces/default")[0] == 200
