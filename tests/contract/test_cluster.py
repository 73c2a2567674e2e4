"""What every ``Cluster`` keeps to: the one in memory, the demo's, and the real one."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from gpushare.kube.cluster import Kind, PodTarget
from gpushare.kube.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Gone,
    NotFound,
    Throttled,
)
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.contract.seats import Seat, embedded_seat, http_seat
from tests.machine import needs
from tests.testbed.controlplane import ControlPlane
from tests.testbed.rest import Json, Rest

# The test bed's API server makes its own certificate: there is nothing to check it by.
pytestmark = pytest.mark.filterwarnings(
    "ignore::urllib3.exceptions.InsecureRequestWarning"
)

SEATS = ["embedded", "loopback", pytest.param("real", marks=pytest.mark.controlplane)]
BIND_S = 5.0


@pytest.fixture(params=SEATS)
def seat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Seat]:
    if request.param == "embedded":
        yield embedded_seat()
    elif request.param == "loopback":
        cluster = Embedded(bookmark_every_s=0.1)
        with (
            ApiServerOnLoopback(cluster) as server,
            http_seat(
                server.url,
                None,
                server.kubeconfig(tmp_path / "kubeconfig"),
                namespace="default",
                compact=cluster.compact,
                bookmark_within_s=1.0,
            ) as found,
        ):
            yield found
    else:
        plane: ControlPlane = request.getfixturevalue("control_plane")
        token = plane.admin.token
        kubeconfig = plane.kubeconfig(token, "contract")
        with http_seat(
            plane.url, token, kubeconfig, compact=compaction(plane)
        ) as found:
            yield found


def compaction(plane: ControlPlane) -> Callable[[], None]:
    """Compact etcd, and start the API server anew, whose cache knows more than etcd."""

    def compact() -> None:
        version = plane.rest.must("GET", "/api/v1/pods")["metadata"]["resourceVersion"]
        plane.stop_apiserver()
        etcd = Rest(plane._etcd_port, tls=False)
        etcd.must("POST", "/v3/kv/compaction", {"revision": version, "physical": True})
        plane.start_apiserver()

    return compact


def target(pod: Json, uid: str = "") -> PodTarget:
    metadata = pod["metadata"]
    return PodTarget(metadata["namespace"], metadata["name"], uid or metadata["uid"])


def bind(seat: Seat, pod: Json, node: str = "node", **annotations: str) -> None:
    seat.cluster.bind(target(pod), node, annotations, timeout_s=BIND_S)


def names(things: list[Json]) -> list[str]:
    return [thing["metadata"]["name"] for thing in things]


def test_pages_make_one_list(seat: Seat) -> None:
    """Pages together hold each object once, all at the same version."""
    made = names([seat.pod(f"p{number}") for number in range(7)])
    pages = list(seat.pages(3, seat.selector))
    found = [name for page in pages for name in names(list(page.items))]
    assert found == made
    assert all(len(page.items) <= 3 for page in pages)
    assert len(pages) > 1
    assert len({page.resource_version for page in pages}) == 1


def test_pages_run_over_all_namespaces(seat: Seat) -> None:
    """A list without a selector holds ours, whatever else there is."""
    made = names([seat.pod(f"p{number}") for number in range(3)])
    items = [item for page in seat.pages(2) for item in page.items]
    assert names([item for item in items if seat.is_ours(item)]) == made


def test_continue_token_stays_in_its_moment(seat: Seat) -> None:
    """Later pages show what was there at the first, whatever happens meanwhile."""
    pods = [seat.pod(f"p{number}") for number in range(5)]
    first = seat.cluster.list_page(Kind.PODS, limit=2, field_selector=seat.selector)
    seat.delete(pods[3], 0)
    seat.label(pods[4], changed="yes")
    seat.pod("p9")
    rest = list(seat.pages(2, seat.selector, first.continue_token))
    later = [item for page in rest for item in page.items]
    assert names([*first.items, *later]) == names(pods)
    assert all("labels" not in item["metadata"] for item in later)
    assert {page.resource_version for page in rest} == {first.resource_version}


def test_watch_misses_nothing_since_the_list(seat: Seat) -> None:
    """A watch from a list's version tells all that came after, in order."""
    old = seat.pod("old")
    version = seat.version()
    seat.label(old, step="one")
    new = seat.pod("new")
    seat.delete(old, 0)
    events = seat.watch(version, 1, until="DELETED")
    told = [(event.type, event.object["metadata"]["name"]) for event in events]
    first, second, *_, last = told
    assert first == ("MODIFIED", old["metadata"]["name"])
    assert second == ("ADDED", new["metadata"]["name"])
    assert last == ("DELETED", old["metadata"]["name"])


def test_watch_tells_while_it_runs(seat: Seat) -> None:
    """What happens after the watch began comes too; versions only grow."""
    version = seat.version()
    seen: list[Json] = []

    def follow() -> None:
        events = seat.watch(version, 1, until="DELETED")
        seen.extend(event.object for event in events)

    thread = threading.Thread(target=follow)
    thread.start()
    pod = seat.pod("pod")
    seat.label(pod, step="one")
    seat.delete(pod, 0)
    thread.join()
    versions = [int(thing["metadata"]["resourceVersion"]) for thing in seen]
    assert len(versions) >= 3
    assert all(one < other for one, other in pairwise(versions))


def test_watch_goes_on_from_an_event(seat: Seat) -> None:
    """The version of an event is one to watch from: neither twice nor never."""
    version = seat.version()
    seat.pod("one")
    first = seat.watch(version, 1)[0]
    seat.pod("two")
    later = seat.watch(first.object["metadata"]["resourceVersion"], 1)
    assert names([event.object for event in later]) == [seat.name("two")]


def test_selector_chooses_in_lists(seat: Seat) -> None:
    """Terms are joined by "and"; "!=" takes away."""
    bound, pending = seat.pod("bound"), seat.pod("pending")
    bind(seat, bound, seat.name("node"))
    at_node = f"spec.nodeName={seat.name('node')}"
    chosen = f"spec.nodeName==,metadata.namespace={seat.namespace}"
    for selector, wanted in (
        (at_node, bound),
        (chosen, pending),
        (f"{chosen},status.phase!=Succeeded", pending),
        (f"metadata.name={pending['metadata']['name']}", pending),
    ):
        items = [item for page in seat.pages(500, selector) for item in page.items]
        assert names(items) == names([wanted]), selector


def test_leaving_a_selector_is_a_deletion(seat: Seat) -> None:
    """In a watch of running pods a pod that ends is DELETED, and stays in the store."""
    selector = f"status.phase!=Succeeded,metadata.namespace={seat.namespace}"
    pod = seat.pod("pod")
    version = seat.version()
    bind(seat, pod)
    done = seat.patch_status(pod, phase="Succeeded")
    events = seat.watch(version, 2, selector)
    assert [event.type for event in events] == ["MODIFIED", "DELETED"]
    last = events[-1].object["metadata"]["resourceVersion"]
    assert last == done["metadata"]["resourceVersion"]
    assert seat.read(pod)["status"]["phase"] == "Succeeded"


def test_entering_a_selector_is_an_addition(seat: Seat) -> None:
    """In a watch of a node's pods a pod that is bound there is ADDED."""
    pod = seat.pod("pod")
    version = seat.version()
    bind(seat, pod, seat.name("node"))
    events = seat.watch(version, 1, f"spec.nodeName={seat.name('node')}")
    assert [event.type for event in events] == ["ADDED"]


def test_quiet_watch_sends_a_bookmark(seat: Seat) -> None:
    """A watch that has nothing to tell still moves the version on before it ends."""
    version = seat.version()
    stream = seat.cluster.watch(
        Kind.PODS,
        resource_version=version,
        timeout_s=seat.bookmark_within_s,
        field_selector=f"spec.schedulerName={seat.name('nobody')}",
    )
    # The real one sends none where nothing at all has happened since the watch began.
    other = threading.Timer(seat.bookmark_within_s / 6, seat.pod, ["other"])
    other.start()
    events = list(stream)
    other.join()
    assert {event.type for event in events} == {"BOOKMARK"}
    assert int(events[-1].object["metadata"]["resourceVersion"]) > int(version)


def test_compacted_version_is_gone(seat: Seat) -> None:
    """Old versions are forgotten: a watch and a page from then must begin anew."""
    needs(seat.compact is not None, "a way to compact", "compact etcd")
    assert seat.compact is not None
    pods = [seat.pod(f"p{number}") for number in range(3)]
    page = seat.cluster.list_page(Kind.PODS, limit=1, field_selector=seat.selector)
    for pod in pods:
        seat.label(pod, step="one")
    seat.compact()
    with pytest.raises(Gone):
        seat.watch(page.resource_version, 3)
    with pytest.raises(Gone):
        list(seat.pages(1, seat.selector, page.continue_token))
    found = [item for page in seat.pages(1, seat.selector) for item in page.items]
    assert names(found) == names(pods)


def test_what_is_not_there_is_not_found(seat: Seat) -> None:
    """Of every kind; nothing is made by annotating, binding, evicting or tainting."""
    nobody, cluster = seat.name("nobody"), seat.cluster
    gone = seat.pod("pod")
    seat.delete(gone, 0)
    calls: list[Callable[[], object]] = [
        lambda: bind(seat, gone),
        lambda: cluster.evict(target(gone)),
        lambda: cluster.set_taints(nobody, [], "1"),
        lambda: cluster.annotate(Kind.PODS, seat.namespace, nobody, {"a": "1"}),
        lambda: cluster.annotate(Kind.NODES, "", nobody, {"a": "1"}),
    ]
    for kind in Kind:
        namespace = "" if kind in {Kind.NODES, Kind.SLICES} else seat.namespace
        calls.append(partial(cluster.get, kind, namespace, nobody))
    for call in calls:
        with pytest.raises(NotFound):
            call()


def test_bind_writes_node_and_annotations_at_once(seat: Seat) -> None:
    """One version has node, placement and condition; other annotations stay."""
    pod = seat.pod("pod")
    seat.cluster.annotate(
        Kind.PODS, seat.namespace, pod["metadata"]["name"], {"own": "1", "ours": "old"}
    )
    version = seat.version()
    bind(seat, pod, "node", ours="new", more="2")
    event = seat.watch(version, 1)[0].object
    assert event["spec"]["nodeName"] == "node"
    assert event["metadata"]["annotations"] == {"own": "1", "ours": "new", "more": "2"}
    conditions = {one["type"]: one["status"] for one in event["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"


def test_second_bind_conflicts(seat: Seat) -> None:
    """A bound pod stays where it is, its annotations too, even for the same node."""
    pod = seat.pod("pod")
    bind(seat, pod, "node", ours="first")
    with pytest.raises(Conflict, match="is already assigned to node"):
        bind(seat, pod, "other", ours="second")
    with pytest.raises(Conflict):
        bind(seat, pod, "node", ours="second")
    found = seat.read(pod)
    assert found["spec"]["nodeName"] == "node"
    assert found["metadata"]["annotations"] == {"ours": "first"}


def test_the_uid_is_a_precondition(seat: Seat) -> None:
    """A pod made anew under the old name is neither bound nor evicted."""
    old = seat.pod("pod")
    seat.delete(old)
    new = seat.pod("pod")
    with pytest.raises(Conflict):
        bind(seat, old)
    assert "nodeName" not in seat.read(new)["spec"]
    bind(seat, new)
    seat.patch_status(new, phase="Running")
    with pytest.raises(Conflict):
        seat.cluster.evict(target(old))
    assert stays(seat, new)


def test_bind_to_unknown_node_is_accepted(seat: Seat) -> None:
    """The API server does not ask whether there is such a node (contracts 1.5)."""
    pod = seat.pod("pod")
    bind(seat, pod, seat.name("no-such-node"))
    assert seat.read(pod)["spec"]["nodeName"] == seat.name("no-such-node")


def test_bind_of_a_deleting_pod_conflicts(seat: Seat) -> None:
    """A pod on its way out gets no node, whichever reason is told."""
    pod = seat.pod("pod")
    bind(seat, pod)
    seat.delete(pod, 60)
    with pytest.raises(Conflict):
        bind(seat, pod, "other")


def test_annotate_merges(seat: Seat) -> None:
    """Only the named annotations change, of pods and of nodes."""
    pod, node = seat.pod("pod"), seat.node("node")
    cluster = seat.cluster
    for kind, namespace, thing in (
        (Kind.PODS, seat.namespace, pod),
        (Kind.NODES, "", node),
    ):
        name = thing["metadata"]["name"]
        cluster.annotate(kind, namespace, name, {"a": "1", "b": "1"})
        cluster.annotate(kind, namespace, name, {"b": "2"})
        found = cluster.get(kind, namespace, name)["metadata"]["annotations"]
        assert (found["a"], found["b"]) == ("1", "2")


def test_annotate_sets_labels_too(seat: Seat) -> None:
    """In the same write; a label that is not named stays."""
    name = seat.node("node")["metadata"]["name"]
    for labels in ({"a": "1", "b": "1"}, {"b": None}):
        seat.cluster.annotate(Kind.NODES, "", name, {"c": "1"}, labels=labels)
    found = seat.cluster.get(Kind.NODES, "", name)["metadata"]
    assert found["labels"]["a"] == "1"
    assert "b" not in found["labels"]
    assert found["annotations"]["c"] == "1"


def test_taints_are_replaced_unless_the_node_was_written(seat: Seat) -> None:
    """All at once; an empty list leaves none."""
    name, key = seat.node("node")["metadata"]["name"], {"effect": "NoSchedule"}
    first, second = ({"key": one, **key} for one in ("a", "b"))
    version = str(seat.cluster.get(Kind.NODES, "", name)["metadata"]["resourceVersion"])
    seat.cluster.set_taints(name, [first, second], version)
    with pytest.raises(Conflict):
        seat.cluster.set_taints(name, [], version)
    for wanted in ([second], []):
        found = seat.cluster.get(Kind.NODES, "", name)
        seat.cluster.set_taints(name, wanted, found["metadata"]["resourceVersion"])
        found = seat.cluster.get(Kind.NODES, "", name)
        assert found["spec"].get("taints", []) == wanted


def test_event_is_found_by_its_pod(seat: Seat) -> None:
    """An event names its pod, the uid included; two of a kind are two."""
    pod = seat.pod("pod")
    for message in ("first", "second"):
        seat.cluster.event(
            target(pod), kind="Warning", reason="Refused", message=message, host="n"
        )
    uid = pod["metadata"]["uid"]
    page = seat.cluster.list_page(
        Kind.EVENTS, limit=10, field_selector=f"involvedObject.uid={uid}"
    )
    told = {(event["type"], event["reason"], event["message"]) for event in page.items}
    assert told == {("Warning", "Refused", "first"), ("Warning", "Refused", "second")}
    assert [event["source"]["host"] for event in page.items] == ["n", "n"]
    about = {event["involvedObject"]["name"] for event in page.items}
    assert about == {pod["metadata"]["name"]}


def test_requests_default_to_limits(seat: Seat) -> None:
    """Each container, init containers too, requests its limits where it says nothing.

    Numbers come back as text.
    """
    limits = {"baidu.com/vcuda-memory": 8, "cpu": "2"}
    container = {
        "name": "main",
        "image": "local.test/pause:1",
        "resources": {"limits": limits, "requests": {"cpu": "1"}},
    }
    pod = seat.pod(
        "pod", containers=[container], initContainers=[container | {"name": "init"}]
    )
    spec = seat.read(pod)["spec"]
    for found in (*spec["containers"], *spec["initContainers"]):
        wanted = {"baidu.com/vcuda-memory": "8", "cpu": "1"}
        assert found["resources"]["requests"] == wanted


def test_bound_pod_stays_until_kubelet_lets_go(seat: Seat) -> None:
    """Deleting a bound pod marks it, shorter grace wins, grace 0 takes it away."""
    pod = seat.pod("pod", terminationGracePeriodSeconds=40)
    bind(seat, pod)
    version = seat.version()
    for grace, left in ((None, 40), (20, 20), (30, 20)):
        seat.delete(pod, grace)
        metadata = seat.read(pod)["metadata"]
        assert metadata["deletionGracePeriodSeconds"] == left
        assert metadata["deletionTimestamp"]
    seat.delete(pod, 0)
    with pytest.raises(NotFound):
        seat.read(pod)
    # The real one may say on the way that the grace is now 0.
    seen = [event.type for event in seat.watch(version, 1, until="DELETED")]
    assert seen[:2] == ["MODIFIED", "MODIFIED"]


def test_new_pod_is_pending_and_goes_at_once(seat: Seat) -> None:
    """It has a uid, a time and a version, and waits; no kubelet need let it go."""
    pod = seat.pod("pod")
    assert pod["status"]["phase"] == "Pending"
    assert pod["metadata"]["uid"]
    assert pod["metadata"]["creationTimestamp"].endswith("Z")
    assert int(pod["metadata"]["resourceVersion"]) > 0
    seat.delete(pod)
    with pytest.raises(NotFound):
        seat.read(pod)


def test_budgets_are_read(seat: Seat) -> None:
    """PodDisruptionBudgets come in lists as the other kinds do."""
    made = budget(seat, "budget", 0)
    items = seat.cluster.list_page(Kind.BUDGETS, limit=500).items
    assert [item["spec"] for item in items if seat.is_ours(item)] == [made["spec"]]


def test_claims_are_read_and_watched(seat: Seat) -> None:
    """ResourceClaims come as other kinds do; their status is written by itself."""
    name = seat.name("claim")
    metadata = {"name": name, "namespace": seat.namespace}
    exactly = {"deviceClassName": "vcuda"}
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    version = seat.version(Kind.CLAIMS)
    seat.arrange.create(Kind.CLAIMS, {"metadata": metadata, "spec": spec})
    result = {"driver": "d.io", "pool": "n", "device": "gpu-1", "request": "card"}
    allocation = {"devices": {"results": [result]}}
    patch = {"status": {"allocation": allocation}}
    seat.arrange.patch(Kind.CLAIMS, seat.namespace, name, patch, subresource="status")
    items = seat.cluster.list_page(Kind.CLAIMS, limit=500).items
    assert name in names(list(items))
    found = seat.cluster.get(Kind.CLAIMS, seat.namespace, name)
    assert found["spec"]["devices"]["requests"][0]["name"] == "card"
    assert found["status"]["allocation"]["devices"]["results"] == [result]
    seen: list[tuple[str, bool]] = []
    stream = seat.cluster.watch(Kind.CLAIMS, resource_version=version, timeout_s=30)
    for event in stream:
        if event.type != "BOOKMARK" and seat.is_ours(event.object):
            status = event.object.get("status") or {}
            seen.append((event.type, "allocation" in status))
            if len(seen) == 2:
                stream.close()  # type: ignore[attr-defined]
                break
    assert seen == [("ADDED", False), ("MODIFIED", True)]


def slice_body(seat: Seat, *devices: str) -> Json:
    """A ResourceSlice of the test's own driver and node."""
    pool = {"name": seat.name("node"), "generation": 1, "resourceSliceCount": 1}
    capacity = {"memory": {"value": "256Mi"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": seat.name("slice")},
        "spec": {
            "driver": f"{seat.prefix}.test",
            "nodeName": seat.name("node"),
            "pool": pool,
            "devices": [
                {
                    "name": name,
                    "allowMultipleAllocations": True,
                    "capacity": capacity,
                    "taints": [{"key": "a/b", "effect": "NoSchedule"}],
                }
                for name in devices
            ],
        },
    }


def test_slices_are_written(seat: Seat) -> None:
    """An object is created once, replaced if it is still the same, and deleted."""
    cluster, name = seat.cluster, seat.name("slice")
    asked = cluster.create(Kind.SLICES, slice_body(seat, "one"), dry_run=True)
    assert asked["spec"]["devices"][0]["allowMultipleAllocations"] is True
    made = cluster.create(Kind.SLICES, slice_body(seat, "one"))
    try:
        assert [one["name"] for one in made["spec"]["devices"]] == ["one"]
        assert made["spec"]["devices"][0]["allowMultipleAllocations"] is True
        with pytest.raises(AlreadyExists):
            cluster.create(Kind.SLICES, slice_body(seat, "one"))
        body = slice_body(seat, "one", "two")
        version = {"resourceVersion": made["metadata"]["resourceVersion"]}
        body["metadata"] |= version
        stored = cluster.replace(Kind.SLICES, body)
        assert [one["name"] for one in stored["spec"]["devices"]] == ["one", "two"]
        with pytest.raises(Conflict):
            cluster.replace(Kind.SLICES, body)
        selector = f"spec.driver={seat.prefix}.test,spec.nodeName={seat.name('node')}"
        page = cluster.list_page(Kind.SLICES, limit=10, field_selector=selector)
        assert [one["spec"] for one in page.items] == [stored["spec"]]
    finally:
        cluster.delete(Kind.SLICES, "", name)
    with pytest.raises(NotFound):
        cluster.delete(Kind.SLICES, "", name)


def at_work(seat: Seat, name: str, *, ready: bool = True, **labels: str) -> Json:
    """A pod that runs, as its kubelet would say."""
    pod = seat.pod(name, terminationGracePeriodSeconds=40)
    if labels:
        seat.label(pod, **labels)
    bind(seat, pod)
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    seat.patch_status(pod, phase="Running", conditions=conditions)
    return seat.read(pod)


def budget(seat: Seat, name: str, allowed: int) -> Json:
    """Cover the seat's pods with its own label; so many disruptions are allowed."""
    metadata = {"name": seat.name(name), "namespace": seat.namespace}
    selector = {"matchLabels": {"app": seat.prefix}}
    spec = {"minAvailable": 1, "selector": selector}
    made = seat.arrange.create(Kind.BUDGETS, {"metadata": metadata, "spec": spec})
    status = {
        "observedGeneration": made["metadata"].get("generation", 0),
        "disruptionsAllowed": allowed,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
    }
    seat.arrange.patch(
        Kind.BUDGETS,
        seat.namespace,
        metadata["name"],
        {"status": status},
        subresource="status",
    )
    return made


def stays(seat: Seat, pod: Json) -> bool:
    return "deletionTimestamp" not in seat.read(pod)["metadata"]


def test_an_evicted_pod_has_its_own_grace(seat: Seat) -> None:
    """It is marked, and stays until kubelet lets go."""
    pod = at_work(seat, "pod")
    seat.cluster.evict(target(pod))
    assert seat.read(pod)["metadata"]["deletionGracePeriodSeconds"] == 40


def test_budgets_count_evictions(seat: Seat) -> None:
    """One allows so many, then no more; who is not covered goes."""
    one, two = (at_work(seat, name, app=seat.prefix) for name in ("one", "two"))
    other = at_work(seat, "other")
    made = budget(seat, "budget", 1)
    seat.cluster.evict(target(one))
    assert not stays(seat, one)
    with pytest.raises(Throttled, match="disruption budget"):
        seat.cluster.evict(target(two))
    assert stays(seat, two)
    seat.cluster.evict(target(other))
    assert not stays(seat, other)
    name = made["metadata"]["name"]
    status = seat.cluster.get(Kind.BUDGETS, seat.namespace, name)["status"]
    assert status["disruptionsAllowed"] == 0
    assert list(status["disruptedPods"]) == [one["metadata"]["name"]]


def test_budgets_guard_what_is_at_work(seat: Seat) -> None:
    """A pod that waits, and one that is not ready while enough are, cost nothing."""
    waits = seat.pod("waits")
    seat.label(waits, app=seat.prefix)
    sick = at_work(seat, "sick", ready=False, app=seat.prefix)
    budget(seat, "budget", 0)
    seat.cluster.evict(target(waits))
    with pytest.raises(NotFound):
        seat.read(waits)
    seat.cluster.evict(target(sick))
    assert not stays(seat, sick)


def test_two_budgets_over_one_pod(seat: Seat) -> None:
    """Nobody knows which counts: the pod stays."""
    pod = at_work(seat, "pod", app=seat.prefix)
    budget(seat, "one", 1)
    budget(seat, "two", 1)
    with pytest.raises(ClusterError, match="more than one PodDisruptionBudget"):
        seat.cluster.evict(target(pod))
    assert stays(seat, pod)
