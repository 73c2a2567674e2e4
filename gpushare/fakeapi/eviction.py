"""What an eviction asks of PodDisruptionBudgets, and takes from them. Pure.

The source is Kubernetes 1.36: ``pkg/registry/core/pod/storage/eviction.go``.
"""

from collections.abc import Iterable
from datetime import datetime

from gpushare.cache import budgets
from gpushare.fakeapi.rules import timestamp
from gpushare.kube.cluster import Json
from gpushare.kube.codec import pod_record
from gpushare.kube.errors import Forbidden, Throttled, Unavailable
from gpushare.kube.json_reader import Reader

RETRY_AFTER_S = 10.0
"""What the API server tells whoever a budget turned away."""
_DISRUPTS_NOBODY = ("Pending", "Succeeded", "Failed")


def spares_budgets(pod: Json) -> bool:
    """Tell whether no budget is asked: nothing runs in the pod, or not for long."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in _DISRUPTS_NOBODY or "deletionTimestamp" in pod["metadata"]


def budget_over(pod: Json, found: Iterable[Json]) -> Json | None:
    """Give the budget that covers a pod; ``Unavailable`` for several, as the real one.

    It answers 500 then, and means it.
    """
    record = pod_record(pod)
    covering = [one for one in found if budgets.budgets([one], [record])[0].pods]
    if len(covering) > 1:
        raise Unavailable(
            "This pod has more than one PodDisruptionBudget, which the eviction "
            "subresource does not support."
        )
    return covering[0] if covering else None


def spent(budget: Json, pod: Json, moment: datetime) -> Json:
    """Give a budget as one pod's eviction leaves it; ``Throttled`` where none is left.

    A pod that is not ready costs nothing while enough others are.
    """
    status = Reader(budget).optional_object("status")
    if not _is_ready(pod) and _is_at_strength(status):
        return budget
    name = budget["metadata"]["name"]
    generation = budget["metadata"].get("generation") or 0
    if status.optional_integer("observedGeneration") < generation:
        raise _no_more(f"The disruption budget {name} is still being processed.")
    allowed = status.optional_integer("disruptionsAllowed")
    if allowed < 0:
        raise Forbidden("pdb disruptions allowed is negative")
    if allowed == 0:
        raise _no_more(f"The disruption budget {name} allows no more now.")
    disrupted = status.optional_object("disruptedPods").raw
    disrupted = {**disrupted, pod["metadata"]["name"]: timestamp(moment)}
    changed = {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
    return {**budget, "status": {**status.raw, **changed}}


def _no_more(why: str) -> Throttled:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return Throttled(f"{message} {why}", RETRY_AFTER_S)


def _is_ready(pod: Json) -> bool:
    status = Reader(pod).optional_object("status")
    return any(
        one.optional_text("type") == "Ready" and one.optional_text("status") == "True"
        for one in status.optional_objects("conditions")
    )


def _is_at_strength(status: Reader) -> bool:
    wanted = status.optional_integer("desiredHealthy")
    return 0 < wanted <= status.optional_integer("currentHealthy")
