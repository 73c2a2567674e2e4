"""Prove with a pod that is never created that the API server reaches the webhook.

A firewall may stand between the two: managed control planes often reach only kubelet's
port on the nodes. Until the connection is proved, the configurations are limited to the
probe pod, so that no other pod depends on a webhook that cannot be reached.
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
"""It exists in every cluster, and the webhook is asked about it."""
REACHED_WITHIN_S = 60.0
"""A Ready replica is in the Service a moment later, and then in its proxies."""
_PROBE_ONLY = {
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
"""It asks for memory without cores, and the webhook adds the cores."""


@dataclass(frozen=True, slots=True)
class Result:
    """One attempt; ``words`` say why the webhook is not ``reached``.

    ``reached`` is None if it is not known: the pod was refused for other reasons, or
    another webhook has changed it.
    """

    reached: bool | None
    words: str = ""


def probed(objects: Objects) -> Result:
    """Let the API server create the probe pod as a dry run; a refusal is no error."""
    try:
        made = objects.create(probe_pod(), dry_run=True)
    except ClusterError as error:
        # It answers 500 for a webhook that it cannot reach. A definite refusal comes
        # from elsewhere, such as a policy for that namespace.
        if error.definite and not error.retryable:
            return Result(None, f"the probe pod was refused: {error}")
        return Result(reached=False, words=str(error))
    changed = _is_changed(made)
    if changed is None:
        return Result(None, "the probe pod was changed by another webhook")
    if changed:
        return Result(reached=True)
    return Result(reached=False, words="it creates pods without asking the webhook")


def probe_pod() -> Json:
    """Return a pod that every level of Pod Security admits."""
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
    """Limit a configuration to the probe pod."""
    found = deepcopy(configuration)
    for one in found["webhooks"]:
        one["matchConditions"] = [_PROBE_ONLY, *one.get("matchConditions", ())]
    return found


def _is_changed(pod: Json) -> bool | None:
    """Return whether the webhook has added the cores; None if that cannot be known.

    Other webhooks may add containers, or remove ours.
    """
    containers = pod["spec"].get("containers") or ()
    ours = [one for one in containers if one.get("name") == _CONTAINER["name"]]
    limits = ((ours[0].get("resources") or {}).get("limits") or {}) if ours else {}
    if names.CORE in limits:
        return True
    return False if names.MEMORY in limits else None
