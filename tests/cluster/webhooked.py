"""The webhook of a real cluster: what it says, who it is, whether all is well."""

import json
from collections.abc import Sequence
from threading import Event

from tests.cluster.fresh import Fresh
from tests.cluster.manifests import container, pod
from tests.cluster.site import SYSTEM
from tests.testbed.audit import Call
from tests.testbed.rest import Json

NAME = "gpushare-webhook"
OURS = ("-n", SYSTEM, "-l", f"app.kubernetes.io/name={NAME}")
USER = f"system:serviceaccount:{SYSTEM}:{NAME}"
WRONG = pod("wrong", container("main", 4, 150))
DENIED = 'admission webhook "pods.vcuda.baidu.com" denied the request: '


def replicas(host: Fresh) -> int:
    status = host.get("deployment", NAME, "-n", SYSTEM)["status"]
    return int(status.get("availableReplicas", 0))


def denied(host: Fresh) -> str:
    """Ask for what cannot be, and give kubectl's words."""
    asked = ("create", "--dry-run=server", "-f", "-")
    done = host.cluster.try_kubectl(*asked, stdin=json.dumps(WRONG))
    assert done.returncode != 0, done.stdout
    return done.stderr


def calls(host: Fresh) -> list[Call]:
    return host.calls(USER)


def asked_all_the_time(host: Fresh, stop: Event) -> Sequence[str]:
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    said = []
    while not stop.wait(0.05):
        said.append(str(host.cluster.rest.post(path, WRONG)[1].get("message")))
    return said


def images(host: Fresh) -> set[str]:
    found = host.get("pods", *OURS)["items"]
    return {one["spec"]["containers"][0]["image"] for one in found}


def all_ready(host: Fresh) -> bool:
    """Tell whether every pod of kube-system runs and is ready."""
    listed = host.cluster.try_kubectl("get", "pods", "-n", SYSTEM, "-o", "json")
    if listed.returncode != 0:
        return False
    pods: list[Json] = json.loads(listed.stdout)["items"]
    return bool(pods) and all(
        {"type": "Ready", "status": "True"}.items() <= ready_of(one).items()
        for one in pods
    )


def ready_of(one: Json) -> dict[str, str]:
    conditions = one["status"].get("conditions", [])
    found = [each for each in conditions if each["type"] == "Ready"]
    return found[0] if found else {}
