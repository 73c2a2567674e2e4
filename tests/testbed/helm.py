"""The real Helm, built into the cache, and one user of it."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.binaries import (
    HELM,
    HELM_4,
    HELM_4_MODULE,
    HELM_MODULE,
    ensure_binaries,
)

CHART = Path(__file__).parents[2] / "charts" / "gpushare"
KUBERNETES = "1.36.3"
"""What is rendered for without a cluster: our build of Helm has no default."""


def ensure_helm(cache: Path) -> str:
    """Give Helm 3, built now (a minute or two) where the cache has none.

    Raises ``BinariesUnavailableError`` where it cannot be had.
    """
    return ensure_binaries(cache, HELM_MODULE, HELM).path("helm")


def ensure_helm_4(cache: Path) -> str:
    """Give Helm 4 likewise."""
    return ensure_binaries(cache, HELM_4_MODULE, HELM_4).path("helm")


@dataclass(frozen=True, slots=True)
class Helm:
    """A user of Helm with a home of its own; ``kubeconfig`` is that of its cluster."""

    program: str
    home: Path
    kubeconfig: Path | None = None
    namespace: str = "kube-system"

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        kinds = ("CONFIG", "CACHE", "DATA")
        return subprocess.run(
            [self.program, *map(str, arguments), f"--namespace={self.namespace}"],
            env={
                **{f"HELM_{kind}_HOME": str(self.home / kind) for kind in kinds},
                # Its cache of what the API server serves.
                "HOME": str(self.home),
                # No other cluster by accident.
                "KUBECONFIG": str(self.kubeconfig or "/dev/null"),
                "PATH": "/usr/bin:/bin",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, *arguments: str | Path) -> str:
        """Run it, which has to succeed, and give what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {arguments}: {done.stderr}"
        return done.stdout

    def template(self, values: Mapping[str, str], *more: str) -> str:
        """Render the chart without a cluster, and without its tests."""
        version = f"--kube-version={KUBERNETES}"
        wanted = ("--skip-tests", version, *more, *settings(values))
        return self.must("template", "gpushare", CHART, *wanted)


def settings(values: Mapping[str, str]) -> Sequence[str]:
    """Give the words that set these values."""
    return [f"--set={key}={text}" for key, text in values.items()]
