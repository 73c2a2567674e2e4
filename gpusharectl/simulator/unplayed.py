"""What of a scenario's own pods and nodes is not played; the report says so. Pure."""

from collections.abc import Iterator

from gpushare.kube import names, words
from gpushare.kube.cluster import Json
from gpusharectl.simulator.scenario import Arrive, Drain, Join, Scenario

NOT_PLAYED = (
    "kube-scheduler's own scores: it weighs them in beside the policy's",
    "preemption, pod affinity, spreading, volumes and ports",
)
"""What a real cluster has and a simulation does not, whatever is played."""
_DRAINED = "disruption budgets: a drained node's pods all go at once"
_DAEMONS = "DaemonSets' pods on added nodes: each begins empty"
_WEBHOOK = "the webhook: it gives 1 core to a container that asks units and no cores"
_PLAYED = frozenset({names.MEMORY, names.CORE, "cpu", "memory", "pods"})
_MOST_NAMES = 5


def not_played(scenario: Scenario) -> Iterator[str]:
    """Say what a real cluster would have that was left out here, as sentences."""
    yield from NOT_PLAYED
    drains = any(isinstance(step.what, Drain) for step in scenario.steps)
    if drains:
        yield _DRAINED
    joins = any(isinstance(step.what, Join) for step in scenario.steps)
    if joins and any(map(_is_daemon, scenario.there)):
        yield _DAEMONS
    others: set[str] = set()
    lacks_cores = False
    for spec in _specs(scenario, drains=drains):
        for container in _containers(spec):
            asked = _asked(container)
            others |= asked - _PLAYED
            lacks_cores |= names.MEMORY in asked and names.CORE not in asked
    if lacks_cores:
        yield _WEBHOOK
    if others:
        told = words.listed(sorted(others), _MOST_NAMES)
        yield f"other resources that pods ask, whether nodes have them or not: {told}"


def _is_daemon(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == "DaemonSet" for owner in owners)


def _specs(scenario: Scenario, *, drains: bool) -> Iterator[Json]:
    """Give the specs of pods to be placed; of those that share one, it once."""
    seen: dict[int, Json] = {}
    arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
    for pod in (*arriving, *(scenario.there if drains else ())):
        seen.setdefault(id(pod["spec"]), pod["spec"])
    yield from seen.values()


def _containers(spec: Json) -> Iterator[Json]:
    for key in ("initContainers", "containers"):
        yield from spec.get(key) or ()


def _asked(container: Json) -> set[str]:
    resources = container.get("resources") or {}
    parts = (resources.get(part) or {} for part in ("requests", "limits"))
    return {name for part in parts for name, value in part.items() if value != "0"}
