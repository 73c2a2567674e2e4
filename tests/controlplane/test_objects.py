"""The operator's hands on a real API server: objects of any kind, one by one."""

from collections.abc import Iterator
from itertools import count

import pytest

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from gpushare.kube.objects import FIELD_MANAGER, Objects, Ref
from gpusharectl.access import CannotReachError, reach
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import new_namespace, pod, post_node

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

NUMBERS = count()
ROLE = Ref("rbac.authorization.k8s.io/v1", "ClusterRole", "gpushare-tried")


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Iterator[Objects]:
    path = plane.kubeconfig(plane.admin.token, "objects")
    made = ApiObjects.connect(str(path), "testbed")
    yield made
    made.close()


@pytest.fixture(scope="module")
def own(plane: ControlPlane) -> str:
    """A namespace that nobody else writes in."""
    return new_namespace(plane.rest)


@pytest.fixture
def settings(objects: Objects, own: str) -> Iterator[Json]:
    """A ConfigMap of the test's own."""
    body = config_map(own, {"kept": "1", "changed": "1"})
    yield objects.apply(body)
    objects.delete(Ref.of(body))


def config_map(namespace: str, data: dict[str, str]) -> Json:
    name = f"settings-{next(NUMBERS)}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"tried": name}},
        "data": data,
    }


def by(plane: ControlPlane, token: str, name: str) -> ApiObjects:
    return ApiObjects.connect(str(plane.kubeconfig(token, name)))


@pytest.mark.parametrize(
    ("api_version", "kind", "served"),
    [
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", True),
        ("apps/v1", "Pod", False),
        ("apps/v1beta1", "Deployment", False),
        ("nobody.example/v1", "Thing", False),
        # Of that kind are only subresources.
        ("v1", "Eviction", False),
    ],
)
def test_what_is_served(
    objects: Objects, api_version: str, kind: str, served: bool
) -> None:
    """To uninstall from an old cluster must not end in an error."""
    assert objects.serves(api_version, kind) is served
    if not served:
        ref = Ref(api_version, kind, "a", "default")
        assert objects.get(ref) is None
        assert objects.delete(ref) is False
        with pytest.raises(NotFound, match=f"does not serve {kind} of {api_version}"):
            objects.list(api_version, kind)


def test_apply_makes_and_changes_and_leaves(objects: Objects, own: str) -> None:
    """The same again is no new version; what is left out goes."""
    body = config_map(own, {"a": "1", "b": "1"})
    made = objects.apply(body)
    assert made["data"] == {"a": "1", "b": "1"}
    assert made["metadata"]["managedFields"][0]["manager"] == FIELD_MANAGER
    again = objects.apply(body)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    changed = objects.apply({**body, "data": {"a": "2"}})
    assert changed["data"] == {"a": "2"}


def test_apply_takes_over_what_another_wrote(
    plane: ControlPlane, objects: Objects, settings: Json
) -> None:
    """Without force this would be a conflict with kubectl's own hand."""
    ref = Ref.of(settings)
    path = f"/api/v1/namespaces/{ref.namespace}/configmaps/{ref.name}"
    plane.rest.must("PATCH", path, {"data": {"kept": "another's"}})
    ours = {**settings, "metadata": {"name": ref.name, "namespace": ref.namespace}}
    assert objects.apply(ours)["data"]["kept"] == "1"


def test_a_dry_run_changes_nothing(objects: Objects, own: str) -> None:
    """And shows what would come of it, defaults and refusals too."""
    body = config_map(own, {"a": "1"})
    shown = objects.apply(body, dry_run=True)
    assert shown["metadata"]["uid"]
    assert objects.get(Ref.of(body)) is None
    with pytest.raises(Invalid, match=r"(?i)data\[.*Invalid value"):
        objects.apply({**body, "data": {"no such key": "1"}}, dry_run=True)


def test_create_adds_once(objects: Objects, own: str) -> None:
    """Who comes second hears that it is there, which is no other conflict."""
    body = config_map(own, {})
    objects.create(body)
    with pytest.raises(AlreadyExists, match="already exists"):
        objects.create(body)
    assert objects.delete(Ref.of(body)) is True
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "probe-"
    made = objects.create(body)
    assert made["metadata"]["name"].startswith("probe-")
    assert objects.get(Ref.of(made)) is not None


def test_merge_changes_and_takes_out(objects: Objects, settings: Json) -> None:
    """Other fields stay."""
    patch = {"data": {"changed": None, "new": "1"}}
    assert objects.merge(Ref.of(settings), patch)["data"] == {"kept": "1", "new": "1"}
    with pytest.raises(Conflict):
        objects.merge(Ref.of(settings), {"metadata": {"resourceVersion": "1"}})


def test_merge_into_a_subresource(plane: ControlPlane, objects: Objects) -> None:
    """A node's status is written by no other way."""
    post_node(plane.rest, "merged")
    node = Ref("v1", "Node", "merged")
    patch = {"status": {"capacity": {"baidu.com/vcuda-core": "0"}}}
    objects.merge(node, patch, subresource="status")
    there = objects.get(node)
    assert there is not None
    assert there["status"]["capacity"]["baidu.com/vcuda-core"] == "0"
    path = "/status/capacity/baidu.com~1vcuda-core"
    left = objects.json_patch(
        node, [{"op": "remove", "path": path}], subresource="status"
    )
    assert "baidu.com/vcuda-core" not in left["status"]["capacity"]
    assert objects.delete(node) is True


def test_a_json_patch_may_ask_first(objects: Objects, settings: Json) -> None:
    """A test that fails leaves all as it is."""
    ref = Ref.of(settings)
    asked = {"op": "test", "path": "/data/changed", "value": "9"}
    step = {"op": "remove", "path": "/data/changed"}
    with pytest.raises(Invalid):
        objects.json_patch(ref, [asked, step])
    steps = [{**asked, "value": "1"}, step]
    assert objects.json_patch(ref, steps, dry_run=True)["data"] == {"kept": "1"}
    assert objects.get(ref) == settings
    assert objects.json_patch(ref, steps)["data"] == {"kept": "1"}


def test_delete_tells_whether_there_was_one(objects: Objects, settings: Json) -> None:
    """A pod goes at once with no grace."""
    ref = Ref.of(settings)
    assert objects.delete(ref) is True
    assert objects.delete(ref) is False
    made = objects.create(pod("short", ref.namespace))
    assert objects.delete(Ref.of({"apiVersion": "v1", "kind": "Pod"} | made)) is True


def test_a_list_has_all_pages(plane: ControlPlane, objects: Objects, own: str) -> None:
    """Each with its kind, which lists leave out; and by labels and fields."""
    namespace = new_namespace(plane.rest)
    bodies = [config_map(namespace, {}) for _ in range(5)]
    for body in bodies:
        objects.apply(body)
    # kube-root-ca.crt would be the namespace controller's; it does not run here.
    few = ApiObjects(objects._api, page=2)
    found = few.list("v1", "ConfigMap", namespace=namespace)
    assert {Ref.of(body) for body in found} == {Ref.of(body) for body in bodies}
    assert len(found) == 5
    name = bodies[3]["metadata"]["name"]
    for selected in (
        few.list("v1", "ConfigMap", label_selector=f"tried={name}"),
        few.list("v1", "ConfigMap", field_selector=f"metadata.name={name}"),
    ):
        assert [body["metadata"]["name"] for body in selected] == [name]


def test_of_no_namespace_is_of_all(plane: ControlPlane, objects: Objects) -> None:
    """Where an object needs one, it must be given."""
    there = {new_namespace(plane.rest) for _ in range(2)}
    for namespace in there:
        objects.apply(config_map(namespace, {}))
    found = {body["metadata"]["namespace"] for body in objects.list("v1", "ConfigMap")}
    assert there <= found
    with pytest.raises(Invalid, match="Pod a: give its namespace"):
        objects.get(Ref("v1", "Pod", "a"))


@pytest.mark.parametrize(
    "body", [{}, {"apiVersion": "v1", "kind": "Pod"}, {"kind": "Pod", "metadata": None}]
)
def test_what_is_no_object(objects: Objects, body: Json) -> None:
    with pytest.raises(Invalid, match=r"it needs apiVersion, kind and metadata\.name"):
        objects.apply(body)


def test_may_we(plane: ControlPlane, objects: Objects, own: str) -> None:
    """By RBAC, for groups, subresources and one namespace.

    A websocket is opened by GET, so ``create`` alone gives no page of a pod.
    """
    token = service_account_token(plane.rest, own, "small")
    rules: list[Json] = [
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]},
    ]
    grant(plane.rest, f"system:serviceaccount:{own}:small", rules)
    small = by(plane, token, "small")
    assert small.may("get", "daemonsets.apps")
    assert small.may("create", "pods/portforward", own)
    assert not small.may("get", "daemonsets")
    assert not small.may("create", "pods", own)
    assert objects.may("delete", "clusterroles.rbac.authorization.k8s.io")
    with pytest.raises(Forbidden, match="nobody"):
        small.fetch(own, "nobody", 9400, "/metrics")
    small.close()


def test_without_rights(plane: ControlPlane, own: str) -> None:
    """Read and write alike; an unknown token is no better."""
    token = service_account_token(plane.rest, own, "nobody")
    for who in (by(plane, token, "nobody"), by(plane, "wrong", "wrong")):
        with pytest.raises(Forbidden):
            who.list("v1", "Pod")
        with pytest.raises(Forbidden):
            who.delete(ROLE)
        who.close()


def test_a_pod_that_no_kubelet_has(objects: Objects, own: str) -> None:
    """No log and no page, in a sentence."""
    made = objects.create(pod("unbound", own))
    name = made["metadata"]["name"]
    assert objects.log(own, name) == ""
    with pytest.raises(NotFound, match="not found"):
        objects.log(own, "nobody")
    with pytest.raises(NotFound, match="not found"):
        objects.fetch(own, "nobody", 39999, "/snapshot")
    with pytest.raises((Invalid, Unavailable), match=r"(?i)pod|host"):
        objects.fetch(own, name, 39999, "/snapshot")


def test_credentials_that_nobody_knows(plane: ControlPlane) -> None:
    """As after a certificate has expired, or of another cluster."""
    config = str(plane.kubeconfig("wrong", "wrong"))
    with pytest.raises(CannotReachError) as caught:
        reach(config)
    assert caught.value.message == (
        f"{plane.url} does not accept the credentials with {config}, context testbed "
        "(Unauthorized); name a newer kubeconfig, such as the administrator's, with "
        "--kubeconfig"
    )


def test_without_the_rights(plane: ControlPlane) -> None:
    """It names those that are missing."""
    token = service_account_token(plane.rest, "default", "few")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    grant(plane.rest, "system:serviceaccount:default:few", rules)
    config = str(plane.kubeconfig(token, "few"))
    with pytest.raises(CannotReachError, match="does not let you list nodes in all"):
        reach(config)
    reach(config, needs=[("list", "pods")]).close()


def test_another_certificate(plane: ControlPlane) -> None:
    """An API server that is not the one of the kubeconfig."""
    config = plane.kubeconfig(plane.admin.token, "strict")
    text = config.read_text().replace('"insecure-skip-tls-verify": true', '"a": 1')
    config.write_text(text)
    with pytest.raises(CannotReachError, match=r"(?i)certificate"):
        reach(str(config))
