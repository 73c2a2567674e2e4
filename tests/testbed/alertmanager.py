"""A real Alertmanager and its amtool, from Debian's packages (0.25)."""

import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpushare.listening import free_address
from tests.testbed.process import Launcher
from tests.testbed.prometheus import MonitoringPrograms

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
class Alertmanager:
    """A server on a free port of loopback, with this configuration."""

    programs: MonitoringPrograms
    folder: Path
    config: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = str(free_address())
        self._launcher = Launcher(self.folder)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def __enter__(self) -> Self:
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
        try:
            self._launcher.start(
                "alertmanager", [*command, share, program, *flags]
            ).wait_ready(self._ready)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._launcher.end_all()

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

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
