"""PodDisruptionBudgets, joined with the pods that they cover. Pure."""

from collections.abc import Iterable, Mapping

from gpushare.domain.preemption import Budget
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.json_reader import Reader


def budgets(objects: Iterable[Json], pods: Iterable[PodRecord]) -> tuple[Budget, ...]:
    """Read budgets, each with those of our pods that it covers; ``Malformed``.

    As kube-scheduler counts them: an empty selector covers nothing, and a pod whose
    disruption is under way already counts no more
    (``pkg/scheduler/framework/plugins/defaultpreemption``).
    """
    known = tuple(pods)
    return tuple(_budget(Reader(each), known) for each in objects)


def _budget(budget: Reader, pods: Iterable[PodRecord]) -> Budget:
    namespace = budget.object("metadata").text("namespace")
    selector = budget.object("spec").optional_object("selector")
    status = budget.optional_object("status")
    disrupted = status.optional_object("disruptedPods").raw
    covered = frozenset(
        pod.pod.uid
        for pod in pods
        if pod.pod.namespace == namespace
        and pod.pod.name not in disrupted
        and selector.raw
        and _selects(selector, pod.labels)
    )
    return Budget(covered, status.optional_integer("disruptionsAllowed"))


def _selects(selector: Reader, labels: Mapping[str, str]) -> bool:
    wanted = selector.optional_object("matchLabels").texts("")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        _holds(rule, labels) for rule in selector.optional_objects("matchExpressions")
    )


def _holds(rule: Reader, labels: Mapping[str, str]) -> bool:
    found = labels.get(rule.text("key"))
    values = rule.raw.get("values") or ()
    match rule.text("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
    return False
