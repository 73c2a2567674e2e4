"""How full each policy packs a cluster, beside the limit for any policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import plots
from bench.report.page import BenchResult, Goal, PageSection, Picture, Table, at, number

_LOAD = "100"
_WHERE = (
    "The trace is `cluster-trace-gpu-v2023` of `alibaba/clusterdata`: put its "
    "`openb_*.csv` into the folder `GPUSHARE_TRACE_DIR`."
)


def _slowest(part: str) -> Callable[[BenchResult], float | None]:
    """Return what reads a time of frag's decisions, in ms, on its slowest list."""
    decisions = at("policies", "frag", "decision_us", part)

    def read(result: BenchResult) -> float | None:
        each = [took for one in result["lists"].values() if (took := decisions(one))]
        return max(each) / 1000 if each else None

    return read


_NOT_BELOW = {
    "cpu200": 96.14,
    "default": 96.17,
    "gpushare60": 92.12,
    "multigpu30": 97.06,
}
"""What frag allocated before its decisions became faster."""

PACKING_GOALS = (
    Goal(
        "frag, mean of a decision on the slowest list, ms", "≤ 0.50", _slowest("mean")
    ),
    Goal("frag, p99 of a decision on the slowest list, ms", "≤ 4.00", _slowest("p99")),
)


def packing_section(result: BenchResult, pictures: Path) -> PageSection:
    """Return the section on the public trace: each policy, and the linear bound."""
    lists: dict[str, Any] = result["lists"]
    shown = {name: _panel(one) for name, one in lists.items()}
    plots.panels(
        pictures / "packing.svg",
        {name: panel for name, panel in shown.items() if panel[0]},
        "arrived load, percent of all cards",
        "allocated, percent",
    )
    words = (
        "Percent of all cards that are allocated when pods for 100 percent have "
        "arrived: the mean over the seeds of a replay of the public trace. The "
        "ceiling is the largest load that a linear program still places completely."
    )
    picture = Picture(
        "packing.svg", "Allocated share by arrived load, one chart per list"
    )
    parts: list[str | Table | Picture] = [words, _means(lists), _seeds(lists), picture]
    if churn := _churn(result.get("churn", {})):
        words = (
            f"Pods of the list {result['churn']['list']} come and go at a steady load. "
            "Percent of all cards allocated, and of the demand that found no room:"
        )
        parts += [words, churn]
    parts.append(_WHERE)
    return PageSection("Packing", parts, result)


def _seeds(lists: dict[str, Any]) -> str:
    """Return the number of seeds behind the means."""
    counts = {
        len(of["seeds"]) for one in lists.values() for of in one["policies"].values()
    }
    return f"Seeds of each mean: {' to '.join(map(str, sorted(counts)))}."


def _policies(lists: dict[str, Any]) -> list[str]:
    names = (name for one in lists.values() for name in one["policies"])
    return list(dict.fromkeys(names))


def _means(lists: dict[str, Any]) -> Table:
    policies = _policies(lists)
    rows = []
    for name, one in lists.items():
        means = [_mean(one["policies"].get(policy)) for policy in policies]
        ceiling = one.get("limits", {}).get("ceiling")
        allowed = f"≥ {_NOT_BELOW[name]:.2f}" if name in _NOT_BELOW else ""
        rows.append((name, *map(number, [*means, ceiling]), allowed))
    return Table(("list", *policies, "ceiling", "frag allowed"), tuple(rows))


def _mean(policy: dict[str, Any] | None) -> float | None:
    return None if policy is None else policy["mean"].get(_LOAD)


def _panel(one: dict[str, Any]) -> tuple[dict[str, plots.Points], dict[str, float]]:
    curves: dict[str, plots.Points] = {
        name: [(load, share) for load, share in policy["curve"] if load >= 80]
        for name, policy in one["policies"].items()
    }
    ceiling = one.get("limits", {}).get("ceiling")
    drawn = {name: points for name, points in curves.items() if points}
    return drawn, {} if ceiling is None else {"ceiling": ceiling}


def _churn(churn: dict[str, Any]) -> Table | None:
    policies: dict[str, Any] = churn.get("policies", {})
    loads = list(dict.fromkeys(load for of in policies.values() for load in of))
    rows = tuple(
        (policy, *(_share_and_refused(of.get(load, {})) for load in loads))
        for policy, of in policies.items()
    )
    heads = ("allocated / refused", *(f"load {load}" for load in loads))
    return Table(heads, rows) if rows else None


def _share_and_refused(of: dict[str, Any]) -> str:
    return f"{number(of.get('share'))} / {number(of.get('refused'))}"


def scheduler_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on a slice of the trace through a real kube-scheduler."""
    memory, real = result["in_memory"], result["kube_scheduler"]
    loads = list(dict.fromkeys(load for shares in memory.values() for load in shares))
    rows = tuple(
        (
            policy,
            *(
                f"{number(shares.get(load))} / {number(real.get(policy, {}).get(load))}"
                for load in loads
            ),
        )
        for policy, shares in memory.items()
    )
    words = (
        f"A slice of the list {result['list']}, seed {result['seed']}: "
        f"{result['nodes']} nodes with {result['cards']} cards, {result['pods']} pods. "
        "Allocated percent of the same decisions in memory, and through a real "
        "kube-scheduler, extender and API server. kube-scheduler places pods without "
        "cards alone."
    )
    heads = ("in memory / kube-scheduler", *(f"load {load}" for load in loads))
    table = Table(heads, rows)
    return PageSection("Packing through a real kube-scheduler", [words, table], result)
