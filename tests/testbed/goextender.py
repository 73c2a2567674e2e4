"""An extender in Go with nothing behind it: what kube-scheduler's calls cost at least.

It is built from ``goextender/main.go``, of the standard library alone, in seconds.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gpushare.addresses import find_free_address
from tests.testbed.binaries import HERE, Tool, ensure_binaries
from tests.testbed.process import Launcher
from tests.testbed.rest import Rest

MODULE = HERE / "goextender"
NAME = "goextender"


def ensure_go_extender(cache: Path) -> str:
    """Give the program, built now where the cache has none of these sources.

    Raises ``BinariesUnavailableError`` where it cannot be had.
    """
    tools = (Tool(NAME, f"gpushare.test/{NAME}"),)
    return ensure_binaries(cache, MODULE, tools).path(NAME)


@dataclass
class GoExtender:
    """One that runs while its ``with`` lasts; it binds only with a kubeconfig."""

    program: str
    launcher: Launcher
    name: str = NAME
    kubeconfig: Path | None = None
    """It has to name the API server's certificate."""
    port: int = field(default_factory=lambda: find_free_address().port)

    @property
    def url(self) -> str:
        """What stands in kube-scheduler's stanza."""
        return f"http://127.0.0.1:{self.port}/scheduler"

    @property
    def rest(self) -> Rest:
        return Rest(self.port, tls=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        flags = [f"-listen=127.0.0.1:{self.port}"]
        if self.kubeconfig is not None:
            flags.append(f"-kubeconfig={self.kubeconfig}")
        # The collector as Go has it, and not as the launcher sets it for Kubernetes.
        self._process = self.launcher.start(
            self.name, [self.program, *flags], {"GOGC": "100"}
        )
        self._process.wait_ready(lambda: self.rest.get("/")[0] == 404)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
