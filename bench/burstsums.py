"""What a burst of pods came to, by the audit log and the metrics. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bench.stage import middle
from tests.controlplane.extender import USER
from tests.testbed.audit import WRITES, Call

BINDINGS = "pods/binding"
BINDS = 'vcuda_extender_binds_total{outcome="'
UNBATCHED = "--feature-gates=OpportunisticBatching=false"
"""kube-scheduler turns this off by itself where a profile has an extender."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to have the pods placed."""

    name: str
    means: str
    extender: Literal["ours", "go", "echo"] | None = None
    without: tuple[str, ...] = ()
    """Verbs that are left out of the extender's stanza."""
    flags: tuple[str, ...] = ()


WAYS = (
    Way("ours", "with the extender", "ours"),
    Way("go", "an extender in Go with the same calls and nothing behind them", "go"),
    Way("bare", "without an extender"),
    Way(
        "bare, unbatched", "the same with OpportunisticBatching off", flags=(UNBATCHED,)
    ),
    Way("echo", "an extender whose filter gives all names back, no more", "echo"),
)
MORE_WAYS = (
    Way(
        "ours, no prioritize",
        "with the extender, and no prioritizeVerb",
        "ours",
        without=("prioritizeVerb",),
    ),
)
"""What decided something once (decision 0060), and is measured only by its name."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst showed."""

    seconds: float
    """From the first Binding to the last."""
    pods_per_s: float
    failed: int
    """Bindings that the API server refused."""
    ours: int
    """Writes of the extender's user."""
    schedulers: int
    """Writes of kube-scheduler's user."""
    outcomes: dict[str, int]
    """The extender's binds by outcome; none where there is no extender of ours."""
    verbs_ms: dict[str, float]
    """The extender's own time for one call, verb by verb."""
    cpu_ms: dict[str, float]
    """CPU time for one pod, process by process, their start included."""


def rate(times: Sequence[datetime]) -> tuple[float, float]:
    """Give the seconds from the first to the last, and how many came a second."""
    seconds = (max(times) - min(times)).total_seconds()
    return seconds, (len(times) - 1) / seconds


def summed_up(
    calls: Sequence[Call],
    scheduler: str,
    metrics: dict[str, float],
    used_s: dict[str, float],
    pods: int,
) -> Burst:
    """Read a burst from the audit log's calls and the extender's metrics."""
    bindings = [c for c in calls if c.resource == BINDINGS and c.verb == "create"]
    seconds, per_s = rate([call.at for call in bindings if call.status == 201])
    writers = Counter(call.user for call in calls if call.verb in WRITES)
    return Burst(
        seconds=seconds,
        pods_per_s=per_s,
        failed=sum(call.status != 201 for call in bindings),
        ours=writers[USER.name],
        schedulers=writers[scheduler],
        outcomes={key: int(n) for key, n in labelled(metrics, BINDS).items()},
        verbs_ms=per_call_ms(metrics),
        cpu_ms={part: round(1000 * used / pods, 2) for part, used in used_s.items()},
    )


def labelled(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Give the samples of a metric with one label, by its value."""
    return {
        key.removeprefix(prefix).removesuffix('"}'): value
        for key, value in metrics.items()
        if key.startswith(prefix)
    }


def per_call_ms(metrics: dict[str, float]) -> dict[str, float]:
    """Give the mean time of each verb's calls."""
    counts = labelled(metrics, 'vcuda_extender_request_seconds_count{verb="')
    sums = labelled(metrics, 'vcuda_extender_request_seconds_sum{verb="')
    return {
        verb: round(1000 * sums[verb] / calls, 3)
        for verb, calls in counts.items()
        if calls
    }


def conflicts_percent(bursts: Sequence[Burst]) -> float:
    """Give the share of our binds that came too late, in percent."""
    late = sum(burst.outcomes.get("conflict", 0) for burst in bursts)
    return round(100 * late / sum(sum(burst.outcomes.values()) for burst in bursts), 3)


def report(bursts: dict[str, list[Burst]], pods: int) -> dict[str, Any]:
    """Give what the file has: each way's middle, and what is claimed of ours."""
    ways = {
        way.name: summary(way, bursts[way.name], pods)
        for way in (*WAYS, *MORE_WAYS)
        if way.name in bursts
    }
    ours = bursts["ours"]
    speed = ways["ours"]["pods_per_s"]
    return {
        "ways": ways,
        "ratio": {
            name: round(speed / way["pods_per_s"], 3)
            for name, way in ways.items()
            if name != "ours"
        },
        "conflicts_percent": conflicts_percent(ours),
        "writes_per_pod": middle([burst.ours / pods for burst in ours], 3),
        "binds": dict(sum((Counter(burst.outcomes) for burst in ours), Counter())),
        "verbs_ms": middles([burst.verbs_ms for burst in ours]),
    }


def summary(way: Way, bursts: Sequence[Burst], pods: int) -> dict[str, Any]:
    """Give what one way came to, over its rounds."""
    return {
        "means": way.means,
        "pods_per_s": middle([burst.pods_per_s for burst in bursts], 1),
        "seconds": middle([burst.seconds for burst in bursts]),
        "rounds": [round(burst.pods_per_s, 1) for burst in bursts],
        "refused_bindings": sum(burst.failed for burst in bursts),
        "all_writes_per_pod": middle(
            [(burst.ours + burst.schedulers) / pods for burst in bursts], 3
        ),
        "cpu_ms_per_pod": middles([burst.cpu_ms for burst in bursts]),
    }


def middles(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Give the middle of each figure over the rounds."""
    return {key: middle([figures[key] for figures in rounds]) for key in rounds[0]}
