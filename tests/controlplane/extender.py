"""The real extender as a child process: gunicorn, as operators start it."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpushare.addresses import find_free_address
from tests.testbed.certificates import Certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import User, grant
from tests.testbed.gunicorn_server import command_of
from tests.testbed.manifests import documents, rights
from tests.testbed.process import Launcher, Process
from tests.testbed.rest import Rest
from tests.testbed.waiting import wait_until

USER = User("vcuda-extender")
COMMAND = command_of("extender")


@dataclass
class Extender:
    """One extender beside one kube-scheduler; it can be killed and started again."""

    launcher: Launcher
    name: str
    environment: dict[str, str]
    port: int
    public_port: int
    process: Process | None = None
    certificates: Certificates | None = None
    """With them the verbs want mutual TLS."""

    @property
    def url(self) -> str:
        """What stands in kube-scheduler's stanza."""
        scheme = "https" if self.certificates else "http"
        return f"{scheme}://127.0.0.1:{self.port}/scheduler"

    @property
    def rest(self) -> Rest:
        """Call the verbs as kube-scheduler, with its certificate where it needs one."""
        if self.certificates is None:
            return Rest(self.port, tls=False)
        return Rest(self.port, tls=self.certificates.client())

    @property
    def public(self) -> Rest:
        return Rest(self.public_port, tls=False)

    def start(self, *, wait: bool = True) -> Process:
        process = self.launcher.start(self.name, COMMAND, self.environment)
        self.process = process
        if wait:
            self.wait_ready()
        return process

    def wait_ready(self) -> None:
        assert self.process is not None
        self.process.wait_ready(lambda: self.public.get("/readyz")[0] == 200)

    def kill(self) -> None:
        """Kill it with all its workers, as a node that loses power would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def workers(self) -> list[int]:
        """List the process ids of gunicorn's workers."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]

    def readiness(self) -> tuple[int, str]:
        """Ask /readyz: the status and the words; 0 while nobody listens."""
        try:
            status, answer = self.public.get("/readyz")
        except OSError:
            return 0, ""
        return status, str(answer["text"])

    def metrics(self) -> dict[str, float]:
        """Read /metrics: sample with labels, as it is printed, to value.

        As rendered from now on: a page is given for a second, and no two are alike.
        """

        def page() -> str:
            return str(self.public.get("/metrics")[1]["text"])

        before = page()
        text = wait_until(page, "a new page", accept=lambda seen: seen != before)
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {key: float(value) for key, value in (x.rsplit(" ", 1) for x in lines)}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.stop()
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def extender(
    plane: ControlPlane,
    name: str = "extender",
    certificates: Certificates | None = None,
    **settings: str,
) -> Extender:
    """Prepare an extender with an account of its own; ``settings`` are GPUSHARE_…"""
    tls = certificates.settings if certificates else {}
    rules = rights("gpushare-extender")
    if "CLAIMS_LISTEN" in settings:
        rules += documents("dra/extender-rbac.yaml")[0]["rules"]
    grant(plane.rest, USER.name, rules)
    port, public_port = find_free_address().port, find_free_address().port
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "ignore",  # urllib3 warns of the test bed's certificate
        "GPUSHARE_LISTEN": f"127.0.0.1:{port}",
        "GPUSHARE_PUBLIC_LISTEN": f"127.0.0.1:{public_port}",
        "GPUSHARE_KUBECONFIG": str(plane.kubeconfig(USER.token, name, insecure=False)),
        "GPUSHARE_LOG_FORMAT": "text",
        **{f"GPUSHARE_{key}": value for key, value in (tls | settings).items()},
    }
    return Extender(
        plane.launcher, name, environment, port, public_port, certificates=certificates
    )
