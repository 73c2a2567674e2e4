"""A real Alertmanager and its amtool, from Debian's packages (0.25)."""

import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed.served import Served

BIND = 'mount --bind "$0" /usr/share && exec "$@"'


@dataclass(frozen=True, slots=True)
class Amtool:
    """Debian's amtool."""

    program: str

    def check_config(self, config: Path) -> subprocess.CompletedProcess[str]:
        """``amtool check-config``; look at its ``returncode``."""
        return subprocess.run(
            [self.program, "check-config", config],
            capture_output=True,
            text=True,
            check=False,
        )


@dataclass
class Alertmanager(Served):
    """A server on a free port of loopback, with this configuration."""

    config: Path

    def command(self) -> Sequence[str]:
        program = self.programs.path("prometheus-alertmanager")
        flags = [
            f"--config.file={self.config}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
            "--log.level=debug",
        ]
        # Debian's reads its templates from /usr/share/prometheus alone: it is shown
        # the packages' /usr/share in place of this machine's.
        share = str(self.programs.root / "usr/share")
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", BIND]
        return [*command, share, program, *flags]

    def post(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Post alerts as Prometheus does: ``labels``, ``annotations``, times."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts",
            json.dumps(alerts).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def log(self) -> str:
        """Give what it has logged, failed notifications among it."""
        return (self.folder / "alertmanager.log").read_text(errors="replace")
