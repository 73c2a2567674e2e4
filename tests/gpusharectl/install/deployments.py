"""What the Deployments' controller and kubelets do for an installer, by ``Objects``."""

import json

from gpushare.kube.cluster import Json
from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Objects, Ref

MOUNTED = "test/mounted"
"""Annotation of a pod: the Secret's certificate when it was made."""
READY: Json = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
}


def serve(objects: Objects, deployment: Json, node: str, *, stuck: bool) -> None:
    """Take one step: one replica more, or one of another template less."""
    name, wanted = deployment["metadata"]["name"], deployment["spec"]["replicas"]
    template = json.dumps(deployment["spec"]["template"], sort_keys=True)
    pods = [
        pod
        for number in range(wanted)
        if (pod := objects.get(Ref("v1", "Pod", f"{name}-{number}", SYSTEM)))
    ]
    old = [pod for pod in pods if pod["metadata"]["annotations"]["of"] != template]
    if old:
        # Its kubelet has ended it.
        objects.delete(Ref.of(old[0]), grace_period_s=0)
    missing = next(
        number
        for number in range(wanted + 1)
        if objects.get(Ref("v1", "Pod", f"{name}-{number}", SYSTEM)) is None
    )
    if missing < wanted:
        pod = _pod(objects, deployment, f"{name}-{missing}", node, template)
        objects.create(pod)
        if not stuck:
            objects.merge(Ref.of(pod), READY, subresource="status")
    elif not stuck:
        _count(objects, deployment, wanted)


def _count(objects: Objects, deployment: Json, wanted: int) -> None:
    generation = deployment["metadata"].get("generation", 1)
    if (deployment.get("status") or {}).get("observedGeneration") == generation:
        return
    numbers = dict.fromkeys(
        ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), wanted
    )
    status = {"observedGeneration": generation, **numbers}
    objects.merge(Ref.of(deployment), {"status": status}, subresource="status")


def _pod(
    objects: Objects, deployment: Json, name: str, node: str, template: str
) -> Json:
    spec = deployment["spec"]["template"]["spec"]
    mounted = ""
    for volume in spec["volumes"]:
        if "secret" in volume:
            ref = Ref("v1", "Secret", volume["secret"]["secretName"], SYSTEM)
            secret = objects.get(ref)
            assert secret is not None, "kubelet would wait for the Secret"
            mounted = secret["data"]["tls.crt"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": deployment["metadata"]["name"],
        "uid": deployment["metadata"]["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": SYSTEM,
            "labels": dict(deployment["spec"]["template"]["metadata"]["labels"]),
            "annotations": {"of": template, MOUNTED: mounted},
            "ownerReferences": [owner],
        },
        "spec": {**spec, "nodeName": node},
    }
