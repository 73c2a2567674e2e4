"""cert-manager's controllers and cainjector: one program, built into the cache."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.binaries import HERE, Tool, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.process import Process
from tests.testbed.toolchain import find_go, go_environment, wanted_go

MODULE = HERE / "certmanager"
NAME = "certmanager"
SOURCE = "github.com/cert-manager/cert-manager"


@dataclass(frozen=True, slots=True)
class CertManager:
    """``definitions``: the folder of its CustomResourceDefinitions."""

    program: str
    definitions: Path

    def start(self, plane: ControlPlane) -> Process:
        """Run it as an administrator; its kinds have to be there."""
        kubeconfig = plane.kubeconfig(plane.admin.token, NAME)
        return plane.launcher.start(NAME, [self.program, str(kubeconfig)])


def ensure_cert_manager(cache: Path) -> CertManager:
    """Give cert-manager, built now (minutes) where the cache has none.

    Raises ``BinariesUnavailableError`` where it cannot be had.
    """
    tools = (Tool(NAME, f"gpushare.test/{NAME}"),)
    program = ensure_binaries(cache, MODULE, tools).path(NAME)
    go = find_go(wanted_go((MODULE / "go.mod").read_text()), cache)
    # Go's cache of modules may have been emptied since.
    answer = subprocess.run(
        [go, "mod", "download", "-json", SOURCE],
        cwd=MODULE,
        env=go_environment(go),
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(json.loads(answer.stdout)["Dir"])
    return CertManager(program, folder / "deploy" / "crds")
