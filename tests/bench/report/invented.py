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


def placed(per_s: float) -> dict[str, Any]:
    """What a burst placed one way came to."""
    return {
        "means": "one way",
        "pods_per_s": per_s,
        "seconds": 2_000 / per_s,
        "rounds": [per_s - 1, per_s, per_s + 1],
        "refused_bindings": 0,
        "all_writes_per_pod": 2.0,
        "cpu_ms_per_pod": {"etcd": 0.5},
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
        "nodes": 5,
        "cards_a_node": 8,
        "pods": 2_000,
        "qps": 5_000,
        "ways": {"ours": placed(95.0), "bare": placed(100.0)},
        "ratio": {"bare": 0.95},
        "conflicts_percent": 0.1,
        "writes_per_pod": 1.0,
        "binds": {"bound": 2_000},
        "verbs_ms": {"filter": 1.5, "bind": 2.5},
    },
    "scale.json": {
        **MACHINE,
        "nodes": 10_000,
        "pods": 100_000,
        "start": {"ready_s": 10.0, "rss_mib": 200.0, "peak_mib": 210.0},
        "filter": {
            "names": 5_000,
            "echo": ONE,
            "small": ONE,
            "large": MORE,
            "ratio": 1.5,
        },
        "watch": {"events_per_s": 500.0, "without_load": ONE, "under_load": MORE},
        "takeover": {"killed": {"without_placement_s": 17.0, "until_led_s": 16.0}},
    },
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
