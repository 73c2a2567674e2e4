"""``Embedded`` beyond the contract that it shares with every ``Cluster``."""

import threading
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.errors import AlreadyExists, Conflict, Gone, Invalid, NotFound
from gpusharectl.demo.fakeapi.cluster import Embedded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def cluster(**settings: float) -> Embedded:
    """A cluster in which it is always the same time and UIDs are numbers."""
    numbers = count(1)
    return Embedded(
        now=lambda: NOW,
        new_uid=lambda: f"uid-{next(numbers):05}",
        bookmark_every_s=settings.get("bookmark_every_s", 1.0),
        history=int(settings.get("history", 1000)),
    )


def pod(name: str = "pod", **spec: object) -> Json:
    container = {"name": "main", "resources": {"limits": {"cpu": "1"}}}
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"containers": [container]} | spec}


def with_pod() -> Embedded:
    where = cluster()
    where.create(Kind.PODS, pod())
    return where


def patch(where: Embedded, body: Json, **how: Any) -> Json:
    return where.patch(Kind.PODS, "default", "pod", body, **how)


def names(things: tuple[Json, ...]) -> list[str]:
    return [thing["metadata"]["name"] for thing in things]


def chosen(where: Embedded, fields: str = "", labels: str = "") -> list[str]:
    page = where.list_page(
        Kind.PODS, limit=0, field_selector=fields, label_selector=labels
    )
    return names(page.items)


def bind(where: Embedded, a_pod: Json, node: str = "node") -> None:
    metadata = a_pod["metadata"]
    target = PodTarget(metadata["namespace"], metadata["name"], metadata["uid"])
    where.bind(target, node, {})


def test_create_fills_in() -> None:
    body = pod() | {"status": {"phase": "Running"}}
    body["metadata"] |= {"uid": "mine", "resourceVersion": "7"}
    made = cluster().create(Kind.PODS, body)
    assert made["metadata"] == {
        "name": "pod",
        "namespace": "default",
        "uid": "uid-00001",
        "resourceVersion": "2",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    assert (made["apiVersion"], made["kind"]) == ("v1", "Pod")
    assert made["status"] == {"phase": "Pending"}


def test_create_twice() -> None:
    where = with_pod()
    with pytest.raises(AlreadyExists, match='pods "pod" already exists'):
        where.create(Kind.PODS, pod())


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "metadata: is missing"),
        ({"metadata": {}}, "name or generateName"),
        (pod("Upper"), "is no name"),
        (pod("a/b"), "is no name"),
        ({"metadata": {"name": "pod"}}, "spec: is missing"),
        (pod(containers=[]), "at least one"),
        (pod(containers=[{}]), "name: is missing"),
        (pod(containers=[{"name": "a", "resources": 1}]), "must be an object"),
        (pod() | {"metadata": {"name": "pod", "labels": {"a": 1}}}, "labels.a"),
    ],
)
def test_malformed_pods(body: Json, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        cluster().create(Kind.PODS, body)


def test_nobody_reaches_into_the_store() -> None:
    where, body = cluster(), pod()
    body["metadata"]["labels"] = {"app": "web"}
    made = where.create(Kind.PODS, body)
    body["metadata"]["labels"]["app"] = made["metadata"]["labels"]["app"] = "other"
    read = where.get(Kind.PODS, "default", "pod")
    read["spec"]["containers"].clear()
    change: Json = {"metadata": {"annotations": {"a": "1"}}}
    patch(where, change)
    change["metadata"]["annotations"]["a"] = "2"
    found = where.get(Kind.PODS, "default", "pod")
    assert found["metadata"]["labels"] == {"app": "web"}
    assert found["metadata"]["annotations"] == {"a": "1"}
    assert found["spec"]["containers"]
    assert chosen(where, labels="app=web") == ["pod"]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ("app=web", ["a"]),
        ("app==web,tier", []),
        ("app!=web", ["b", "c"]),
        ("app in (web, db)", ["a", "b"]),
        ("app notin (web,db)", ["c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("tier in (front),app=db", ["b"]),
    ],
)
def test_label_selectors(labels: str, wanted: list[str]) -> None:
    where = cluster()
    for name, its in (("a", {"app": "web"}), ("b", {"app": "db", "tier": "front"})):
        body = pod(name)
        body["metadata"]["labels"] = its
        where.create(Kind.PODS, body)
    where.create(Kind.PODS, pod("c"))
    assert chosen(where, labels=labels) == wanted


@pytest.mark.parametrize("selector", ["spec.image=x", "status.phase", "=a", "a,,b"])
def test_selectors_that_mean_nothing(selector: str) -> None:
    with pytest.raises(Invalid):
        chosen(cluster(), fields=selector)


def test_patch_takes_away() -> None:
    """Null removes a key, as RFC 7396 has it; identity is not to be removed."""
    where = cluster()
    made = where.create(Kind.PODS, pod())["metadata"]
    where.annotate(Kind.PODS, "default", "pod", {"a": "1", "b": "2"})
    gone: Json = {"annotations": {"a": None}, "uid": None, "creationTimestamp": None}
    left = patch(where, {"metadata": gone})["metadata"]
    assert left["annotations"] == {"b": "2"}
    assert left["uid"] == made["uid"]
    assert left["creationTimestamp"]
    for stale in ({"resourceVersion": made["resourceVersion"]}, {"uid": "other"}):
        with pytest.raises(Conflict, match="Precondition failed"):
            patch(where, {"metadata": stale})
    with pytest.raises(Conflict):
        where.delete(Kind.PODS, "default", "pod", uid="other")


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "node"},
        {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]},
        {"containers": [{"name": "other", "resources": {"limits": {"cpu": "1"}}}]},
    ],
)
def test_what_a_pod_asks_is_fixed(spec: Json) -> None:
    where = with_pod()
    with pytest.raises(Invalid, match="may not be changed"):
        patch(where, {"spec": spec})


def test_status_is_apart() -> None:
    """Status changes through its subresource alone, and that changes nothing else."""
    where = with_pod()
    body: Json = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
    plain = patch(where, body)
    assert plain["status"] == {"phase": "Pending"}
    body["metadata"]["labels"] = {"a": "c"}
    left = patch(where, body, subresource="status")
    assert left["status"] == {"phase": "Running"}
    assert left["metadata"]["labels"] == {"a": "b"}


def test_strategic_patch_merges_lists() -> None:
    """Conditions are merged by type, containers by name, directives are dropped."""
    where = with_pod()
    for kind, word in (("A", "False"), ("B", "True"), ("A", "True")):
        status = {"conditions": [{"type": kind, "status": word}]}
        patch(
            where,
            {"status": status, "$setElementOrder/conditions": [{"type": kind}]},
            subresource="status",
            strategic=True,
        )
    body = {"spec": {"containers": [{"name": "main", "image": "new"}]}}
    left = patch(where, body, strategic=True)
    found = [(one["type"], one["status"]) for one in left["status"]["conditions"]]
    assert found == [("A", "True"), ("B", "True")]
    assert left["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}


def test_replace() -> None:
    where = cluster()
    made = where.create(Kind.PODS, pod())
    made["metadata"]["labels"] = {"app": "web"}
    assert where.replace(Kind.PODS, made)["metadata"]["labels"] == {"app": "web"}
    made["metadata"]["labels"] = {"app": "db"}
    with pytest.raises(Conflict):
        where.replace(Kind.PODS, made)
    with pytest.raises(NotFound):
        where.replace(Kind.PODS, pod("other"))


def test_only_an_ended_pod_goes_at_once() -> None:
    """Else the timestamp lies a grace ahead; 30 s where the pod names none."""
    where = cluster()
    bind(where, where.create(Kind.PODS, pod()))
    metadata = where.delete(Kind.PODS, "default", "pod")["metadata"]
    assert metadata["deletionTimestamp"] == "2026-01-02T03:04:35Z"
    assert metadata["deletionGracePeriodSeconds"] == 30
    status = {"status": {"phase": "Failed"}}
    patch(where, status, subresource="status")
    where.delete(Kind.PODS, "default", "pod")
    assert chosen(where) == []


def test_gated_pod_is_not_bound() -> None:
    where = cluster()
    made = where.create(Kind.PODS, pod(schedulingGates=[{"name": "wait"}]))
    with pytest.raises(Conflict, match="schedulingGates"):
        bind(where, made)


def test_watch_from_the_beginning() -> None:
    where = cluster()
    where.create(Kind.PODS, pod("a"))
    stream = where.watch(Kind.PODS, resource_version="", timeout_s=0.0)
    assert [event.type for event in stream] == ["ADDED", "BOOKMARK"]


@pytest.mark.parametrize(
    ("version", "error"), [("x", Invalid), ("99", Gone), ("-1", Invalid)]
)
def test_watch_from_nowhere(version: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        cluster().watch(Kind.PODS, resource_version=version, timeout_s=1.0)


def test_foreign_continue_token() -> None:
    for token in ("?", "e30=", "WzFd", "bm90IGpzb24="):
        with pytest.raises(Invalid):
            cluster().list_page(Kind.PODS, limit=1, continue_token=token)


def test_watch_that_is_up_to_date_outlives_compaction() -> None:
    where = cluster(bookmark_every_s=0.01)
    where.create(Kind.PODS, pod("a"))
    stream = where.watch(Kind.PODS, resource_version="2", timeout_s=10.0)
    assert next(stream).type == "BOOKMARK"
    where.compact()
    where.create(Kind.PODS, pod("b"))
    told = next(event for event in stream if event.type != "BOOKMARK")
    assert told.object["metadata"]["name"] == "b"


def test_history_is_bounded() -> None:
    where = cluster(history=3)
    for number in range(8):
        where.create(Kind.PODS, pod(f"p{number}"))
    with pytest.raises(Gone):
        where.watch(Kind.PODS, resource_version="2", timeout_s=1.0)
    assert len(chosen(where)) == 8


def test_many_writers_and_watchers() -> None:
    """Each watcher sees each write once, in the order of versions."""
    where = cluster()
    told: list[list[int]] = [[] for _ in range(4)]

    def follow(into: list[int]) -> None:
        stream = where.watch(Kind.PODS, resource_version="1", timeout_s=30.0)
        for event in stream:
            if event.type == "ADDED":
                into.append(int(event.object["metadata"]["resourceVersion"]))
            if len(into) == 100:
                return

    def write(writer: int) -> None:
        for number in range(25):
            where.create(Kind.PODS, pod(f"w{writer}-{number}"))

    threads = [threading.Thread(target=follow, args=(into,)) for into in told]
    threads += [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [list(range(2, 102))] * 4
