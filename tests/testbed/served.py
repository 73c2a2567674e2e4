"""A program of the packages' that serves on a free port of loopback, and its end."""

import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from gpushare.addresses import free_address
from tests.testbed.binaries import PROMETHEUS, PROMETHEUS_MODULE, ensure_binaries
from tests.testbed.debpackages import ensure_unpacked
from tests.testbed.process import Launcher

PACKAGES = ("prometheus", "prometheus-alertmanager")


@dataclass(frozen=True, slots=True)
class MonitoringPrograms:
    """Where the packages' files lie, as under a root folder."""

    root: Path
    built: Path | None = None
    """What takes the place of the packages' programs of the same names."""

    def path(self, name: str) -> str:
        """Give one of ``prometheus``, ``promtool``, ``amtool`` and the like."""
        if self.built is not None and (self.built / name).exists():
            return str(self.built / name)
        return str(self.root / "usr/bin" / name)


def ensure_monitoring(cache: Path) -> MonitoringPrograms:
    """Give the programs, fetched now (30 MB) where the cache has none.

    Raises ``BinariesUnavailableError`` where they cannot be had.
    """
    return MonitoringPrograms(ensure_unpacked(cache, "prometheus", PACKAGES))


def ensure_prometheus_3(cache: Path) -> MonitoringPrograms:
    """Give them with Prometheus 3, built now (minutes) where the cache has none.

    Raises ``BinariesUnavailableError`` where they cannot be had.
    """
    built = ensure_binaries(cache, PROMETHEUS_MODULE, PROMETHEUS)
    return replace(ensure_monitoring(cache), built=built.folder)


@dataclass
class Served:
    """A server while its ``with`` lasts; ``folder`` gets its data and its log."""

    programs: MonitoringPrograms
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = str(free_address())
        self._launcher = Launcher(self.folder)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self) -> Sequence[str]:
        """Write what it reads, and give the command that starts it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        name = type(self).__name__.lower()
        try:
            self._launcher.start(name, self.command()).wait_ready(self._ready)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._launcher.end_all()

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
