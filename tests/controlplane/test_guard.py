"""Who may write what the ledger is read back from: the guard as we ship it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import PodTarget, pod_event
from gpushare.kube.errors import Conflict
from tests.controlplane.gate import policies_in_force
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.manifests import guard, rights
from tests.testbed.objects import new_namespace, pod, post_node, sweep
from tests.testbed.rest import MERGE_PATCH, Json, Rest
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

PLACEMENT = "baidu.com/vcuda-placement"
ACTUAL = "baidu.com/vcuda-actual"
CARDS = "baidu.com/vcuda-cards"
CLEAR = "baidu.com/vcuda-clear"
CORDON = "baidu.com/vcuda-cordon"
ISOLATION = "baidu.com/vcuda-isolation"
STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vcuda"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PLAN = {PLACEMENT: '{"v": 1}'}
WHERE = {ACTUAL: '{"v": 1}'}
ALL_OF_PODS = [
    {
        "apiGroups": [""],
        "resources": [
            *("pods", "pods/binding", "pods/status", "bindings", "nodes", "events")
        ],
        "verbs": ["*"],
    }
]
SYSTEM = "/api/v1/namespaces/kube-system"
PLUGIN = "gpushare-device-plugin"
EXTENDER = "gpushare-extender"
EXPORTER = "gpushare-exporter"
COMPONENT = "vcuda-device-plugin"
NUMBERS = count()


@dataclass(frozen=True)
class Guarded:
    """A cluster with the guard up: its admin, a user with all rights to pods, us."""

    admin: Rest
    user: Rest
    extender: Rest
    on_node: Callable[[str, str], Rest]
    """An account on a node, by a token that is bound to its pod there."""
    kubelet: Rest
    """kubelet on ``here``."""

    def plugin(self, node: str) -> Rest:
        """The device plugin on a node."""
        return self.on_node(PLUGIN, node)

    def by(self, token: str) -> Rest:
        """The device plugin on ``here``; by a free token, nobody knows where it is."""
        if token == "bound":
            return self.plugin("here")
        made = account(self.admin, PLUGIN)
        return Rest(self.admin.port, made)

    def pod(self, node: str = "") -> str:
        """Create a pod as admin, bound to the node where one is given; its path."""
        spec = {"nodeName": node} if node else None
        made = pod(f"p{next(NUMBERS)}", spec=spec)
        return path_of(self.admin.must("POST", PODS, made))


PODS = "/api/v1/namespaces/default/pods"
HERE = "/api/v1/nodes/here"
NO_PLAN = ("only the extender of vcuda", "baidu.com/vcuda-isolation only")
"""What the device plugin hears when it writes a placement: two policies forbid it."""


def path_of(made: Json) -> str:
    return f"{PODS}/{made['metadata']['name']}"


def annotated(annotations: dict[str, str | None]) -> Json:
    return {"metadata": {"annotations": annotations}}


def labelled(key: str, value: str | None) -> Json:
    return {"metadata": {"labels": {key: value}}}


def annotations(admin: Rest, path: str) -> Json:
    found: Json = admin.must("GET", path)["metadata"].get("annotations", {})
    return found


def binding(path: str, annotations: dict[str, str] | None = None) -> Json:
    name = path.rpartition("/")[2]
    metadata = {"name": name, "annotations": annotations or {}}
    return {"metadata": metadata, "target": {"kind": "Node", "name": "here"}}


def assert_denied(answer: tuple[int, Json], *says: str) -> None:
    """Of several policies that deny, the API server names any one."""
    status, body = answer
    assert status in {403, 422}, body
    assert any(each in body["message"] for each in says), body


@pytest.fixture(scope="module")
def raised(plane: ControlPlane) -> Iterator[None]:
    """The guard, which would keep other tests' extender from binding."""
    with policies_in_force(plane.rest, guard()):
        plugin = plane.rest_as(account(plane.rest, PLUGIN))
        wait_until(lambda: stands(plane.rest, plugin), "guard")
        sweep(plane.rest)
        yield
    wait_until(lambda: not stands(plane.rest, plugin), "end of guard")
    sweep(plane.rest)


def stands(admin: Rest, plugin: Rest) -> bool:
    """Tell by a dry run whether the last of the guard's policies holds.

    Those before it were made before it, and removed before it.
    """
    if admin.get(HERE)[0] == 404:
        post_node(admin, "here")
    status, answer = plugin.patch(f"{HERE}?dryRun=All", labelled("a", "b"))
    return status >= 400 and "of labels the device plugin" in answer["message"]


@pytest.fixture
def guarded(plane: ControlPlane, raised: None) -> Iterator[Guarded]:
    admin = plane.rest
    for name in ("here", "there"):
        post_node(admin, name)
    token = service_account_token(admin, "default", "user")
    grant(admin, "system:serviceaccount:default:user", ALL_OF_PODS)
    yield Guarded(
        admin,
        plane.rest_as(token),
        plane.rest_as(account(admin, EXTENDER)),
        lambda account, node: plane.rest_as(bound_token(admin, account, node)),
        plane.rest_as(plane.kubelet.token),
    )
    sweep(admin)


def account(admin: Rest, name: str) -> str:
    """Make a service account of ours with the rights that we ship; its token."""
    grant(admin, f"system:serviceaccount:kube-system:{name}", rights(name))
    return service_account_token(admin, "kube-system", name)


def bound_token(admin: Rest, name: str, node: str) -> str:
    """Give the token that kubelet would give to this account's pod on a node."""
    account(admin, name)
    spec = {"nodeName": node, "serviceAccountName": name}
    own = pod(f"{name}-{node}", "kube-system", spec=spec)
    made = admin.must("POST", f"{SYSTEM}/pods", own)["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1"}
    wanted: Json = {
        "spec": {
            "audiences": [],
            "expirationSeconds": 3600,
            "boundObjectRef": {**bound, "name": made["name"], "uid": made["uid"]},
        }
    }
    path = f"{SYSTEM}/serviceaccounts/{name}/token"
    return str(admin.must("POST", path, wanted)["status"]["token"])


@pytest.mark.parametrize("annotation", [PLACEMENT, ACTUAL, ISOLATION])
def test_a_pod_with_a_placement_of_its_own_is_turned_away(
    guarded: Guarded, annotation: str
) -> None:
    """By anybody, whatever rights they have; and told why."""
    forged = pod("forged", annotations={annotation: "{}"})
    for somebody in (guarded.user, guarded.admin):
        assert_denied(
            somebody.post(PODS, forged), f"writes the annotation {annotation}"
        )


@pytest.mark.parametrize("door", ["", "/status"], ids=["pod", "status"])
def test_a_placement_can_be_neither_changed_nor_removed(
    guarded: Guarded, door: str
) -> None:
    """Nor put where there was none."""
    path = guarded.pod()
    bound = guarded.extender.post(f"{path}/binding", binding(path, PLAN))
    assert bound[0] == 201, bound
    forgeries: list[dict[str, str | None]] = [
        *({PLACEMENT: "{}"}, {PLACEMENT: None}, {ACTUAL: "{}"}, {ISOLATION: "driver"})
    ]
    for forged in forgeries:
        answer = guarded.user.patch(f"{path}{door}", annotated(dict(forged)))
        assert_denied(answer, "of vcuda writes the annotation")
    now = guarded.admin.must("GET", path)["metadata"]["annotations"]
    assert now == PLAN


def test_a_binding_with_a_placement_is_the_extenders(guarded: Guarded) -> None:
    """Another's is denied; without the annotation it is none of our business."""
    path = guarded.pod()
    forged = guarded.user.post(f"{path}/binding", binding(path, PLAN))
    assert_denied(forged, "only the extender of vcuda")
    old_name = "/api/v1/namespaces/default/bindings"
    forged = guarded.user.post(old_name, binding(path, PLAN))
    assert_denied(forged, "only the extender of vcuda")
    assert guarded.user.post(f"{path}/binding", binding(path))[0] == 201


def test_other_annotations_are_free(guarded: Guarded) -> None:
    """Also on a pod that has a placement."""
    path = guarded.pod()
    guarded.extender.must("POST", f"{path}/binding", binding(path, PLAN))
    mine = annotated({"mine": "1", "baidu.com/vcuda-policy": "spread"})
    assert guarded.user.patch(path, mine)[0] == 200
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert guarded.user.patch(path, labels)[0] == 200
    assert guarded.user.delete(path)[0] == 200


def test_the_device_plugin_says_where_its_pods_came_to_be(guarded: Guarded) -> None:
    """On its own node; what was planned is not its to change."""
    plugin = guarded.plugin("here")
    own, other = guarded.pod("here"), guarded.pod("there")
    assert plugin.patch(own, annotated(dict(WHERE)))[0] == 200
    assert plugin.patch(own, annotated({ACTUAL: "{}", ISOLATION: "driver"}))[0] == 200
    assert_denied(plugin.patch(own, annotated(dict(PLAN))), *NO_PLAN)
    assert_denied(plugin.patch(other, annotated(dict(WHERE))), "on its own node")
    unbound = guarded.pod()
    assert_denied(plugin.patch(unbound, annotated(dict(WHERE))), "on its own node")


def test_the_device_plugin_writes_its_own_nodes_cards(guarded: Guarded) -> None:
    """And those of no other."""
    plugin = guarded.plugin("here")
    cards = annotated({CARDS: '{"v": 1, "cards": []}'})
    assert plugin.patch(HERE, cards)[0] == 200
    assert_denied(plugin.patch("/api/v1/nodes/there", cards), "on its own node")


def test_the_device_plugin_labels_its_own_node_with_its_tier(guarded: Guarded) -> None:
    """In one write with the cards; other labels stay, and those of other nodes."""
    plugin, tier = guarded.plugin("here"), labelled(ISOLATION, "driver")
    guarded.admin.must("PATCH", HERE, labelled("kept", "as-it-is"))
    both = {"metadata": {**tier["metadata"], **annotated({CARDS: "{}"})["metadata"]}}
    for change in (both, labelled(ISOLATION, "none"), labelled(ISOLATION, None)):
        assert plugin.patch(HERE, change)[0] == 200
    assert_denied(plugin.patch("/api/v1/nodes/there", tier), "on its own node")
    hidden = {"metadata": {"labels": {ISOLATION: "driver", "kept": "other"}}}
    for free in (plugin, guarded.by("free")):
        assert_denied(free.patch(HERE, hidden), "of labels the device plugin")
    assert_denied(plugin.patch(guarded.pod("here"), tier), "of labels the device")


def test_the_device_plugin_takes_an_operators_order_off(guarded: Guarded) -> None:
    """Beside whatever else stands on the node; also where that leaves no annotation.

    Cards that are not there it leaves in the order.
    """
    plugin = guarded.plugin("here")
    guarded.admin.must("PATCH", HERE, annotated({CLEAR: "GPU-1,GPU-2", "theirs": "1"}))
    assert plugin.patch(HERE, annotated({CLEAR: "GPU-2"}))[0] == 200
    assert plugin.patch(HERE, annotated({CLEAR: None}))[0] == 200
    assert annotations(guarded.admin, HERE) == {"theirs": "1"}
    guarded.admin.must("PATCH", HERE, annotated({CLEAR: "GPU-1", "theirs": None}))
    assert plugin.patch(HERE, annotated({CLEAR: None}))[0] == 200
    assert annotations(guarded.admin, HERE) == {}


@pytest.mark.parametrize("token", ["bound", "free"])
@pytest.mark.parametrize("of", ["node", "pod"])
def test_of_annotations_the_device_plugin_writes_its_own(
    guarded: Guarded, of: str, token: str
) -> None:
    """A cordon is the operator's; others steer service meshes, AppArmor, our policy."""
    path = HERE if of == "node" else guarded.pod("here")
    guarded.admin.must("PATCH", path, annotated({"mine": "1"}))
    changes: list[dict[str, str | None]] = [{"mine": "2"}, {"mine": None}, {"new": "1"}]
    if of == "node":
        says = "writes baidu.com/vcuda-cards and baidu.com/vcuda-clear only"
        changes += [{CORDON: "GPU-1"}, {CARDS: "{}", "new": "1"}]
    else:
        says = "writes baidu.com/vcuda-actual and baidu.com/vcuda-isolation only"
        changes += [{**WHERE, "new": "1"}]
    plugin = guarded.by(token)
    for change in changes:
        assert_denied(plugin.patch(path, annotated(change)), says)
    assert annotations(guarded.admin, path) == {"mine": "1"}


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "here", "uid": "1"}
NOT_ITS_OWN: dict[str, Json] = {
    "first-label": {"metadata": {"labels": {"a": "b"}}},
    "finalizer": {"metadata": {"finalizers": ["baidu.com/stay"]}},
    "owner": {"metadata": {"ownerReferences": [OWNER]}},
    "hidden": {"metadata": {"annotations": {CARDS: "{}"}, "labels": {"a": "b"}}},
}
OF_A_NODE: dict[str, Json] = {
    **NOT_ITS_OWN,
    "restricted-label": labelled("node-restriction.kubernetes.io/trusted", "yes"),
    "label-changed": labelled("kept", "other"),
    "label-removed": labelled("kept", None),
    "taint": {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    "cordoned": {"spec": {"unschedulable": True}},
}
# Those that the API server itself adds, and lets nobody remove.
BY_DEFAULT = [
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for key in ("not-ready", "unreachable")
]
OF_A_POD: dict[str, Json] = {
    **NOT_ITS_OWN,
    "hidden": {"metadata": {"annotations": WHERE, "labels": {"a": "b"}}},
    "label-changed": labelled("kept", "other"),
    "label-removed": labelled("kept", None),
    "image": {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
    "deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "toleration": {"spec": {"tolerations": [*BY_DEFAULT, {"operator": "Exists"}]}},
}


@pytest.mark.parametrize("token", ["bound", "free"])
@pytest.mark.parametrize("changes", [OF_A_NODE, OF_A_POD], ids=["node", "pod"])
def test_the_device_plugin_writes_nothing_else(
    guarded: Guarded, changes: dict[str, Json], token: str
) -> None:
    """Else whoever breaks into a node could draw pods to it that trust its labels.

    Or run what he likes under other pods' accounts.
    """
    path = HERE if changes is OF_A_NODE else guarded.pod("here")
    plugin = guarded.by(token)
    for name, change in changes.items():
        if name not in NOT_ITS_OWN:
            guarded.admin.must("PATCH", path, labelled("kept", "as-it-is"))
        kind = MERGE_PATCH if changes is OF_A_NODE else STRATEGIC_PATCH
        answer = plugin.patch(path, change, kind)
        assert_denied(
            answer,
            "the device plugin of vcuda writes annotations and one label only",
            "of labels the device plugin",
        )


def startup_tainted(admin: Rest, path: str) -> tuple[str, list[Json]]:
    """Put the startup taint and another's on a node; its version, and the taints."""
    taints: list[Json] = [
        {"key": STARTUP_TAINT, "value": "true", "effect": "NoSchedule"},
        {"key": STARTUP_TAINT.replace("/vcuda", "/theirs"), "effect": "NoSchedule"},
    ]
    made = admin.must("PATCH", path, {"spec": {"taints": taints}})
    return made["metadata"]["resourceVersion"], taints


def test_the_device_plugin_removes_its_own_nodes_startup_taint(
    guarded: Guarded, plane: ControlPlane
) -> None:
    """By the product's own call; another write in between comes first."""
    token = bound_token(guarded.admin, PLUGIN, "here")
    api = ApiServer.connect(str(plane.kubeconfig(token, "plugin", insecure=False)))
    before, (_, theirs) = startup_tainted(guarded.admin, HERE)
    guarded.admin.must("PATCH", HERE, labelled("kept", "as-it-is"))
    with pytest.raises(Conflict):
        api.set_taints("here", [theirs], before)
    now = guarded.admin.must("GET", HERE)
    assert len(now["spec"]["taints"]) == 2
    api.set_taints("here", [theirs], now["metadata"]["resourceVersion"])
    assert guarded.admin.must("GET", HERE)["spec"]["taints"] == [theirs]
    _, (startup, _) = startup_tainted(guarded.admin, HERE)
    only = guarded.admin.must("PATCH", HERE, {"spec": {"taints": [startup]}})
    api.set_taints("here", [], only["metadata"]["resourceVersion"])
    assert "taints" not in guarded.admin.must("GET", HERE)["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"taints": None},
        {"taints": ["startup"]},
        {"taints": ["startup-changed", "theirs"]},
        {"taints": ["theirs", "startup"]},
        {"taints": ["theirs", "new"]},
        {"taints": ["theirs"], "unschedulable": True},
        {"taints": ["theirs"], "unschedulable": None},
    ],
    ids=["all", "the-other", "value", "order", "exchanged", "cordoned", "uncordoned"],
)
def test_the_device_plugin_changes_no_other_taint(guarded: Guarded, spec: Json) -> None:
    """Nor hides another change of the spec behind it."""
    if spec.get("unschedulable", True) is None:
        guarded.admin.must("PATCH", HERE, {"spec": {"unschedulable": True}})
    _, (startup, theirs) = startup_tainted(guarded.admin, HERE)
    named = {
        "startup": startup,
        "startup-changed": {**startup, "value": "false"},
        "theirs": theirs,
        "new": {"key": "new", "effect": "NoExecute"},
    }
    taints = spec["taints"] and [named[name] for name in spec["taints"]]
    answer = guarded.plugin("here").patch(HERE, {"spec": {**spec, "taints": taints}})
    assert_denied(answer, "the device plugin of vcuda writes annotations")


def test_a_startup_taint_is_removed_by_a_token_of_its_node_alone(
    guarded: Guarded,
) -> None:
    """A free token could be used on every node."""
    _, (_, theirs) = startup_tainted(guarded.admin, HERE)
    left = {"spec": {"taints": [theirs]}}
    assert_denied(guarded.by("free").patch(HERE, left), "of its own node")
    assert_denied(
        guarded.plugin("there").patch(HERE, left), "of its own node", "on its"
    )


def test_labels_finalizers_and_owners_that_are_there_may_stay(guarded: Guarded) -> None:
    """Our writes pass on objects that have them all."""
    full = {"labels": {"a": "b"}, "finalizers": ["baidu.com/stay"]}
    body = {"metadata": {**full, "ownerReferences": [OWNER], "annotations": {"a": "b"}}}
    plugin, path = guarded.plugin("here"), guarded.pod("here")
    for each, ours in ((path, WHERE), (HERE, {CARDS: "{}"})):
        guarded.admin.must("PATCH", each, body)
        assert plugin.patch(each, annotated(dict(ours)))[0] == 200
        assert annotations(guarded.admin, each) == {"a": "b", **ours}
        released = {"metadata": {"finalizers": None}}
        guarded.admin.must("PATCH", each, released)


def test_a_token_that_tells_no_node_is_held_by_its_name_alone(guarded: Guarded) -> None:
    """As on Kubernetes before 1.30, and where an operator made the token."""
    plugin, path = guarded.by("free"), guarded.pod("there")
    assert plugin.patch(path, annotated(dict(WHERE)))[0] == 200
    assert_denied(plugin.patch(path, annotated(dict(PLAN))), *NO_PLAN)


MIRROR = {"kubernetes.io/config.mirror": "4f1c"}
FREE = {"metadata": {"labels": {"baidu.com/vcuda-node-name": "allow"}}}


def on_node(**how: Any) -> Json:
    """Describe a pod that names its node and asks for a share of a card."""
    made = pod("preset", units=4, cores=1, spec={"nodeName": "here"}, **how)
    del made["metadata"]["namespace"]
    return made


def test_a_pod_with_a_share_does_not_name_its_node(guarded: Guarded) -> None:
    """Whoever makes it, else anybody could have a node kept off for others.

    Nor in an init container, nor as the mirror of a static pod that is none.
    """
    early = on_node()
    (asking,) = early["spec"]["containers"]
    early["spec"]["initContainers"] = [{**asking, "name": "early"}]
    early["spec"]["containers"] = pod("plain")["spec"]["containers"]
    for somebody in (guarded.user, guarded.admin):
        for tried in (on_node(), early, on_node(annotations=MIRROR)):
            answer = somebody.post(PODS, tried)
            assert_denied(answer, "spec.nodeName: a pod that asks for a part of a card")


def test_who_may_name_a_node(guarded: Guarded) -> None:
    """Pods without a share, kubelet for its static pods, and namespaces that may."""
    assert guarded.user.post(PODS, pod("bare", spec={"nodeName": "here"}))[0] == 201
    mirror = on_node(annotations=MIRROR)
    assert guarded.kubelet.post(PODS, mirror)[0] == 201
    assert guarded.admin.post(f"{SYSTEM}/pods", on_node())[0] == 201
    space = f"/api/v1/namespaces/{new_namespace(guarded.admin)}"
    assert_denied(guarded.user.post(f"{space}/pods", on_node()), "spec.nodeName")
    guarded.admin.must("PATCH", space, FREE)
    wait_until(
        lambda: guarded.user.post(f"{space}/pods", on_node())[0],
        "the label to count",
        accept=(201).__eq__,
    )


def test_a_pod_that_was_bound_is_written_as_before(guarded: Guarded) -> None:
    """It names its node from then on, and that is no fault of the writer's."""
    path = path_of(guarded.user.must("POST", PODS, pod("bound", units=4, cores=1)))
    guarded.extender.must("POST", f"{path}/binding", binding(path, PLAN))
    assert guarded.user.patch(path, labelled("a", "b"))[0] == 200


def test_the_device_plugin_has_no_other_right(guarded: Guarded) -> None:
    """It reads pods and nodes and annotates them: no secrets."""
    plugin = guarded.plugin("here")
    assert plugin.get("/api/v1/pods")[0] == 200
    assert plugin.get("/api/v1/nodes")[0] == 200
    path = guarded.pod("here")
    assert plugin.delete(path)[0] == 403
    assert plugin.get("/api/v1/secrets")[0] == 403
    assert plugin.patch(f"{path}/status", annotated(dict(WHERE)))[0] == 403


EVENTS = "/api/v1/namespaces/default/events"
OTHERS: list[tuple[Json, str]] = [
    ({"source": {"component": COMPONENT, "host": "there"}}, "own node's name"),
    ({"source": {"component": COMPONENT}}, "own node's name"),
    ({"source": {"component": "kubelet", "host": "here"}}, "of events"),
    ({"reason": "Killing"}, "of events"),
    ({"type": "Normal"}, "of events"),
    (
        {"involvedObject": {"kind": "Node", "name": "here", "namespace": "default"}},
        "of events",
    ),
]


def event(account: str, **other: object) -> Json:
    """Describe an event as an account on node ``here`` writes it."""
    component = account.replace("gpushare", "vcuda")
    about = PodTarget("default", "p", "uid-p")
    reason = "VcudaDenied" if account == PLUGIN else "VcudaOverShare"
    source = {"component": component, "host": "here"}
    made = pod_event(about, "Warning", reason, "no", source, datetime.now(UTC))
    return {**made, **other}


@pytest.mark.parametrize("account", [PLUGIN, EXPORTER])
def test_events_are_written_about_pods_in_ones_own_name(
    guarded: Guarded, account: str
) -> None:
    """What the device plugin and the exporter of a node have to say, and no more."""
    ours = guarded.on_node(account, "here")
    assert ours.post(EVENTS, event(account))[0] == 201
    not_held = ours.post(EVENTS, event(account, reason="VcudaNotHeld"))
    assert (not_held[0] == 201) == (account == EXPORTER), not_held
    assert_denied(guarded.on_node(account, "there").post(EVENTS, event(account)), "own")
    assert_denied(ours.post(EVENTS, event(account, reason="Other")), "of events")
    other = PLUGIN if account == EXPORTER else EXPORTER
    assert_denied(ours.post(EVENTS, event(other)), "of events")


def test_other_events_are_denied(guarded: Guarded) -> None:
    """Else a node that is broken into could make people and programs believe things."""
    plugin = guarded.plugin("here")
    for other, says in OTHERS:
        assert_denied(plugin.post(EVENTS, event(PLUGIN, **other)), says)
        made = guarded.user.post(EVENTS, event(PLUGIN, **other))
        assert made[0] == 201, "others' events are no business of ours"


def test_a_token_that_tells_no_node_writes_our_events(guarded: Guarded) -> None:
    """As on Kubernetes before 1.30."""
    plugin = guarded.by("free")
    assert plugin.post(EVENTS, event(PLUGIN))[0] == 201
    assert_denied(plugin.post(EVENTS, event(PLUGIN, reason="Killing")), "of events")
