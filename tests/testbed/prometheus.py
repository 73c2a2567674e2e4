"""Real Prometheus and Alertmanager with their tools, from Debian's packages."""

import json
import math
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from gpushare.addresses import find_free_address
from tests.testbed.binaries import PROMETHEUS, PROMETHEUS_MODULE, ensure_binaries
from tests.testbed.debpackages import ensure_unpacked
from tests.testbed.process import Launcher
from tests.testbed.waiting import wait_until

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
        self.address = str(find_free_address())
        self._launcher = Launcher(self.folder)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self) -> Sequence[str]:
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
        self._launcher.end_all()

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)


LINTED = 3
"""promtool's exit status for a page that can be read and is not to its taste."""
EVERY_S = 0.5
CAMEL_CASE = "label names should be written in 'snake_case' not 'camelCase'"


class QueryError(AssertionError):
    """Prometheus refused a query; the message has its words."""


@dataclass(frozen=True, slots=True)
class Promtool:
    program: str

    def run(
        self, *arguments: str | Path, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run it, which has to succeed, and give all that it printed."""
        done = self.run(*arguments, stdin=stdin)
        output = done.stdout + done.stderr
        assert done.returncode == 0, (
            f"promtool {arguments}: {done.returncode}\n{output}"
        )
        return output

    def complaints(self, page: str, *, excused: str = CAMEL_CASE) -> list[str]:
        """``promtool check metrics``: what it dislikes of a page, less what is excused.

        A page that it cannot read at all is an AssertionError.
        """
        done = self.run("check", "metrics", stdin=page)
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert done.returncode in {0, LINTED}, "\n".join(lines)
        return [line for line in lines if not line.endswith(excused)]


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant query's answer; ``labels`` without the name."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass
class Prometheus(Served):
    """A server on a free port of loopback, while its ``with`` lasts.

    ``targets`` are addresses by job, as ``{"exporter": ["127.0.0.1:9400"]}``; ``jobs``
    are further scrape configurations, whole, as Prometheus' own file has them. A pod's
    labels are none of ours here: what a test sees is what the page says, ``instance``
    and ``job`` apart.
    """

    targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    jobs: Sequence[Mapping[str, Any]] = ()
    rules: Sequence[Path] = ()
    alertmanagers: Sequence[str] = ()
    every_s: float = EVERY_S

    def command(self) -> Sequence[str]:
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config(), sort_keys=False))
        return [
            self.programs.path("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]

    def api(self, path: str, **query: str | float | Sequence[str]) -> Any:
        """Call ``/api/v1/<path>`` and give ``data``; QueryError where it refuses."""
        url = f"{self.url}/api/v1/{path}?{urlencode(query, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(f"{url}: {error.read().decode()}") from None

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Ask an instant query, in the order of labels; a scalar is one sample."""
        when = {} if at is None else {"time": at}
        answer = self.api("query", query=expression, **when)
        if answer["resultType"] == "scalar":
            return [Sample("", {}, float(answer["result"][1]))]
        samples = map(_sample, answer["result"])
        return sorted(
            samples, key=lambda each: (each.name, sorted(each.labels.items()))
        )

    def value(self, expression: str) -> float:
        """Give the one sample that a query yields; NaN where it yields none."""
        samples = self.query(expression)
        assert len(samples) < 2, f"{expression}: {samples}"
        return samples[0].value if samples else math.nan

    def series(self, *match: str, start: float | None = None) -> list[dict[str, str]]:
        """Give the label sets that match, since ``start``, names as ``__name__``."""
        since = time.time() - 60 if start is None else start
        query: dict[str, float | Sequence[str]] = {"match[]": match, "start": since}
        label_sets: list[dict[str, str]] = self.api("series", **query)
        return label_sets

    def health(self) -> dict[str, str]:
        """Give what each target's last scrape came to: empty if well, by address."""
        return {
            target["labels"]["instance"]: target["lastError"]
            for target in self._targets()
            if target["health"] != "unknown"
        }

    def wait_scraped(self, timeout_s: float = 60.0) -> None:
        """Wait until every target has been scraped well, from after this call on."""
        called = datetime.now(UTC)
        static = sum(len(addresses) for addresses in self.targets.values())
        # It looks for its targets some seconds after it has begun.
        least = static or 1
        wait_until(
            self._targets,
            "scrape of every target",
            timeout_s,
            accept=lambda found: (
                len(found) >= least and all(_well(target, called) for target in found)
            ),
        )

    def _targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api("targets", state="active")[
            "activeTargets"
        ]
        return found

    def _config(self) -> dict[str, Any]:
        every = f"{round(self.every_s * 1000)}ms"
        jobs: list[Mapping[str, Any]] = [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]}
            for job, targets in self.targets.items()
        ]
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "scrape_configs": [*jobs, *self.jobs],
            "rule_files": [str(path) for path in self.rules],
        }
        if self.alertmanagers:
            managers = [{"static_configs": [{"targets": list(self.alertmanagers)}]}]
            config["alerting"] = {"alertmanagers": managers}
        return config


def _well(target: dict[str, Any], since: datetime) -> bool:
    # A scrape that began before may have read the page as it was before.
    began = datetime.fromisoformat(target["lastScrape"])
    return target["health"] == "up" and began > since


def _sample(element: dict[str, Any]) -> Sample:
    labels = dict(element["metric"])
    return Sample(labels.pop("__name__", ""), labels, float(element["value"][1]))


BIND = 'mount --bind "$0" /usr/share && exec "$@"'


@dataclass(frozen=True, slots=True)
class Amtool:
    program: str

    def check_config(self, config: Path) -> subprocess.CompletedProcess[str]:
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
        return (self.folder / "alertmanager.log").read_text(errors="replace")
