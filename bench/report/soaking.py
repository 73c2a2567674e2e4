"""Pods that come and go while parts are killed."""

from pathlib import Path
from typing import Any

from bench.report.page import BenchResult, PageSection, Table, number

_FORMS = ("apart", "share", "claim")


def soak_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on the soak runs; each of them found no fault."""
    runs: dict[str, dict[str, Any]] = result["runs"]
    columns = [dict(_rows(run)) for run in runs.values()]
    rows = tuple((what, *(column[what] for column in columns)) for what in columns[0])
    words = (
        "`make soak` on real etcd, kube-apiserver and kube-scheduler, with a simulated "
        "kubelet, cards of several sizes, MIG instances and linked cards. The seed "
        "draws pods, ResourceClaims, and when a process is killed. An independent "
        "observer adds up what pods and claims hold at each change that the API server "
        "reports. A run writes results only if no card was over-committed and no unit "
        "leaked."
    )
    table = Table(("policy", *runs), rows)
    return PageSection("Soak", [words, table], result)


def _rows(run: dict[str, Any]) -> list[tuple[str, str]]:
    kills = ", ".join(f"{part} {count}" for part, count in run["kills"].items())
    ended = run["ended"]
    forms = ", ".join(number(run["placed"].get(form, 0)) for form in _FORMS)
    return [
        ("pods (created, decided, gone)", number(run["lives"])),
        ("pods per minute", number(run["per_minute"], 0)),
        ("refused with a reason", number(ended.get("refused", 0))),
        ("placed", number(ended.get("placed", 0))),
        (f"of these {', '.join(_FORMS)}", forms),
        ("killed", kills),
        ("changes checked", number(run["moments"])),
        ("extender's memory at the end", f"{number(run['extender_mib'], 1)} MiB"),
        ("seed", str(run["seed"])),
    ]
