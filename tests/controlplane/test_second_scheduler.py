"""The second scheduler as we ship it, under the one account that its pod has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpusharectl.installer.manifests import load_manifests
from tests.controlplane.extender import extender
from tests.controlplane.world import card_node
from tests.testbed import scheduler
from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import service_account_token
from tests.testbed.objects import events_of, pod, post_node
from tests.testbed.scheduler import Scheduler
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

ACCOUNT = "gpushare-extender"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/vcuda-scheduler"
PODS = "/api/v1/namespaces/default/pods"
CHOSEN = "vcuda-scheduler"


@dataclass(frozen=True)
class Pair:
    """What is in one of the Deployment's pods, and the cluster around it."""

    plane: ControlPlane
    scheduler: Scheduler


@pytest.fixture(scope="module")
def pair(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """kube-scheduler and extender by one account, with the rights and the guard."""
    folder = tmp_path_factory.mktemp("second")
    with ControlPlane(binaries, folder) as plane:
        apply(plane)
        token = service_account_token(plane.rest, "kube-system", ACCOUNT)
        own = plane.kubeconfig(token, "own")
        with (
            extender(plane, "extender", KUBECONFIG=str(own)) as ours,
            started(plane, own, ours.url) as running,
        ):
            yield Pair(plane, running)


def apply(plane: ControlPlane) -> None:
    """Install all of the overlay; nothing makes pods of its workloads here."""
    admin = plane.kubeconfig(plane.admin.token, "admin")
    objects = ApiObjects.connect(str(admin))
    for body in load_manifests("second-scheduler"):
        objects.apply(body)
    objects.close()


def started(plane: ControlPlane, kubeconfig: Path, url: str) -> Scheduler:
    """Start the real one with the ConfigMap's file.

    Of it only that is changed which a pod has and a process here has not: the account
    by itself, and a loopback of its own.
    """
    (body,) = [
        body
        for body in load_manifests("second-scheduler")
        if body["kind"] == "ConfigMap"
    ]
    config: Json = yaml.safe_load(body["data"]["scheduler.yaml"])
    config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    config["extenders"][0]["urlPrefix"] = url
    flags = [
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # It would go on without, and not be asked for its metrics by anybody.
        "--authentication-tolerate-lookup-failure=false",
    ]
    command = [plane.binaries.path("kube-scheduler"), *flags]
    return scheduler.start(plane.launcher, command, "second", config)


def wait_bound(plane: ControlPlane, name: str) -> Json:
    def bound() -> Json | None:
        found = plane.rest.must("GET", f"{PODS}/{name}")
        return found if found["spec"].get("nodeName") else None

    found = wait_until(bound, f"{name} to be bound")
    assert found is not None
    return found


def first_event(plane: ControlPlane, a_pod: Json) -> str:
    found = wait_until(lambda: events_of(plane.rest, a_pod), "an event")
    return str(found[0]["message"])


def test_it_leads_under_a_name_of_its_own(pair: Pair) -> None:
    """By the one lease that it may change."""
    wait_until(lambda: pair.plane.rest.get(LEASE)[0] == 200, "a lease")
    held = pair.plane.rest.must("GET", LEASE)
    assert held["spec"]["holderIdentity"]


def test_a_pod_that_chooses_it_gets_a_card(pair: Pair) -> None:
    """The placement passes the guard, because the account is the extender's."""
    card_node(pair.plane.rest, "n", 10)
    spec = {"schedulerName": CHOSEN}
    made = pod("shares", "default", units=4, cores=1, spec=spec)
    pair.plane.rest.must("POST", PODS, made)
    found = wait_bound(pair.plane, "shares")
    assert "n-0" in found["metadata"]["annotations"]["baidu.com/vcuda-placement"]
    pair.plane.rest.must("POST", PODS, pod("plain", "default", spec=spec))
    wait_bound(pair.plane, "plain")


def test_a_pod_that_fits_nowhere_is_told_so(pair: Pair) -> None:
    """By an event of this scheduler's, which takes rights too."""
    spec = {"schedulerName": CHOSEN}
    made = pod("large", "default", units=500, cores=1, spec=spec)
    made = pair.plane.rest.must("POST", PODS, made)
    assert "Insufficient" in first_event(pair.plane, made)


def test_it_stays_off_nodes_with_cards(pair: Pair) -> None:
    """Unless an operator says so by a label, where there are no others."""
    (body,) = [
        body
        for body in load_manifests("second-scheduler")
        if body["metadata"]["name"] == "gpushare-scheduler"
        and body["kind"] == "Deployment"
    ]
    rest, spec = pair.plane.rest, body["spec"]["template"]["spec"]
    os = spec["nodeSelector"]
    post_node(rest, "carded", labels=os | {"baidu.com/vcuda": "true"})
    own = {"nodeSelector": os, "affinity": spec["affinity"], "schedulerName": CHOSEN}
    itself = rest.must("POST", PODS, pod("itself", "default", spec=own))
    assert "node affinity" in first_event(pair.plane, itself)
    label = {"metadata": {"labels": {"baidu.com/vcuda-scheduler": "true"}}}
    rest.must("PATCH", "/api/v1/nodes/carded", label)
    assert wait_bound(pair.plane, "itself")["spec"]["nodeName"] == "carded"
    post_node(rest, "free", labels=os)
    rest.must("DELETE", "/api/v1/nodes/carded")
    rest.must("POST", PODS, pod("next", "default", spec=own))
    assert wait_bound(pair.plane, "next")["spec"]["nodeName"] == "free"


MAY = [
    ("delete", "", "pods"),
    ("create", "", "pods/binding"),
    ("patch", "", "pods/status"),
    ("list", "", "pods"),
    ("patch", "", "persistentvolumes"),
    ("create", "", "events"),
    ("create", "coordination.k8s.io", "leases"),
    ("create", "authentication.k8s.io", "tokenreviews"),
]
MAY_NOT = [
    ("get", "", "secrets"),
    ("create", "", "pods"),
    ("patch", "", "pods"),
    ("create", "", "pods/exec"),
    ("patch", "", "nodes"),
    ("create", "", "serviceaccounts/token"),
    ("list", "", "configmaps"),
]


def test_what_a_thief_of_its_token_may_do(pair: Pair) -> None:
    """As docs/security.md says."""
    user = f"system:serviceaccount:kube-system:{ACCOUNT}"
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    for right in (*MAY, *MAY_NOT):
        verb, group, name = right
        resource, _, sub = name.partition("/")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": sub}
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        status = pair.plane.rest.must("POST", path, review)["status"]
        assert status["allowed"] is (right in MAY), right


def test_no_right_is_missing(pair: Pair) -> None:
    """Whatever either of the two asked for, it was let."""
    user = f"system:serviceaccount:kube-system:{ACCOUNT}"
    calls = [call for call in pair.plane.audit.calls() if call.user == user]
    assert {"leases", "pods/binding", "events"} <= {call.resource for call in calls}
    assert [call for call in calls if call.status == 403] == []
    assert "forbidden" not in pair.scheduler.log.read_text().lower()
