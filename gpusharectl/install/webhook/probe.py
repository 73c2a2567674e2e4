"""Whether the API server gets through to the webhook, by a pod that is never made.

A firewall may stand between the two: control planes that somebody else runs often reach
kubelet's port on the nodes and no other. Until the way is proved, the API server is
told to ask about the pod of the trial alone, so that nobody's pods wait for who cannot
be reached.
"""

from copy import deepcopy
from dataclasses import dataclass

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import PROBE_ONLY
from gpushare.kube.objects import Objects

NAME = "gpushare-webhook-probe"
NAMESPACE = "default"
"""Every cluster has it, and the webhook is asked about it."""
WAY_S = 60.0
"""A replica that is Ready is in the Service a moment later, and in its proxies then."""
_ALONE = {
    "name": PROBE_ONLY,
    "expression": f"object.metadata.?name.orValue('') == '{NAME}'",
}
_CONTAINER = {
    "name": "probe",
    "image": "gpushare",
    "resources": {"limits": {names.MEMORY: "1"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    },
}
"""It asks memory and says nothing of cores, which the webhook sets right."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one try has told: ``words`` say why it is not ``through``, or not certain.

    ``through`` None: nobody knows, since the pod was refused for other reasons or has
    come back as somebody else made it.
    """

    through: bool | None
    words: str = ""


def tried(objects: Objects) -> Trial:
    """Have the API server try to make such a pod; a ``Forbidden`` is no error here."""
    try:
        made = objects.create(probe_pod(), dry_run=True)
    except ClusterError as error:
        # Of a webhook that it cannot reach it says 500; all that is definite is a no
        # of others, such as a policy for that namespace.
        if error.definite and not error.retryable:
            return Trial(None, f"the trial's pod was refused: {error}")
        return Trial(through=False, words=str(error))
    changed = _is_changed(made)
    if changed is None:
        return Trial(None, "the trial's pod has come back changed by somebody else")
    if changed:
        return Trial(through=True)
    return Trial(through=False, words="it makes pods without asking the webhook")


def probe_pod() -> Json:
    """Give a pod that every level of pod security lets through."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "containers": [deepcopy(_CONTAINER)],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def narrowed(configuration: Json) -> Json:
    """Let the API server ask about the pod of the trial, and no other."""
    found = deepcopy(configuration)
    for one in found["webhooks"]:
        one["matchConditions"] = [_ALONE, *one.get("matchConditions", ())]
    return found


def _is_changed(pod: Json) -> bool | None:
    """Tell whether the webhook has put the container right; None where it is not ours.

    Others review pods too: one may add containers, or take ours out.
    """
    containers = pod["spec"].get("containers") or ()
    ours = [one for one in containers if one.get("name") == _CONTAINER["name"]]
    limits = ((ours[0].get("resources") or {}).get("limits") or {}) if ours else {}
    if names.CORE in limits:
        return True
    return False if names.MEMORY in limits else None
