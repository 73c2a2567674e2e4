"""Results of every kind, with figures that no machine would give."""

from typing import Any

MACHINE = {
    "at": "2001-02-03T04:05:06+00:00",
    "machine": "invented, 3 cores",
    "python": "3.99",
}
ONE = {"p50": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0}
MORE = {"p50": 1.5, "p95": 2.0, "p99": 3.0, "max": 4.0}


def filtered(names: int) -> dict[str, Any]:
    """One row of the filter's table."""
    ratios = {"fits_ratio": 1.5, "none_ratio": 1.5}
    return {"names": names, "echo": ONE, "fits": MORE, "none": MORE} | ratios


def policy(share: float) -> dict[str, Any]:
    """What the replays of one policy gave."""
    return {
        "mean": {"100": share, "130": share + 0.1},
        "deviation": {"100": 0.1, "130": 0.1},
        "seeds": {"42": [share, share + 0.1]},
        "decision_us": {"mean": 400.0, "p50": 100.0, "p99": 3000.0},
        "curve": [[50, 50.0], [80, 80.0], [100, share], [130, share + 0.1]],
    }


PACKING = {
    "mine": {
        "policies": {"frag": policy(96.25), "bestfit": policy(95.0)},
        "limits": {"bound": 97.5, "ceiling": 97.0},
        "published": {},
    },
    "theirs": {
        "policies": {"frag": policy(92.0)},
        "limits": {"bound": 93.5, "ceiling": 92.5},
        "published": {"fgd": {"100": 91.25, "130": 91.4}},
    },
}
INVENTED: dict[str, dict[str, Any]] = {
    "filter.json": {
        **MACHINE,
        "filter": [filtered(0), filtered(5_000)],
        "pods": {"0": ONE, "100000": MORE, "ratio": 1.5},
        "decision_us": {"choose": 22.0},
    },
    "webhook.json": {
        **MACHINE,
        "reviews": [
            {
                "review": "denied",
                "bytes": 4_000,
                "ratio": 1.5,
                "echo": ONE,
                "webhook": MORE,
            }
        ],
    },
    "deviceplugin.json": {
        **MACHINE,
        "calls": {"empty": ONE | {"ratio": 1.0}, "Allocate": MORE | {"ratio": 1.5}},
        "running": {"without": ONE, "with a card": MORE, "more_ms": 0.5},
    },
    "exporter.json": {
        **MACHINE,
        "samples": 1_000,
        "exporter": MORE,
        "bare registry": ONE,
        "ratio": 1.5,
        "memory_mib_above_imports": 8.0,
        "idle_percent_of_a_core": 1.0,
    },
    "packing.json": {
        **MACHINE,
        "lists": PACKING,
        "churn": {
            "list": "mine",
            "policies": {"frag": {"95": {"share": 90.0, "refused": 1.0}}},
        },
    },
    "packing_scheduler.json": {
        **MACHINE,
        "list": "mine",
        "seed": 42,
        "nodes": 5,
        "cards": 20,
        "pods": 50,
        "in_memory": {"frag": {"100": 96.0}, "best-fit": {"100": 94.0}},
        "kube_scheduler": {"frag": {"100": 95.0, "took_s": 9.0}},
    },
    "burst.json": {
        **MACHINE,
        "ours": {"pods_per_s": 95.0, "seconds": 21.0},
        "bare": {"pods_per_s": 100.0, "seconds": 20.0},
        "ratio": 0.95,
    },
    "scale.json": {**MACHINE, "ready_s": 10.0},
    "soak.json": {
        **MACHINE,
        "runs": {
            "first-fit": {
                "seed": 7,
                "seconds": 600.0,
                "lives": 10_000,
                "per_minute": 1_000.0,
                "ended": {"placed": 9_000, "refused": 900, "withdrawn": 100},
                "kills": {"extender": 3, "kube-scheduler": 2},
                "kill_log": [],
                "moments": 60_000,
                "lists": 2,
                "mean_held": 0.5,
                "fullest": 0.9,
                "writes": 40_000,
                "nodes": 8,
                "cards": 64,
                "extender_mib": 90.0,
            }
        },
    },
}
