"""The demo's API server, asked by a real kubectl and by plain HTTP."""

import http.client
import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.objects import Ref
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.testbed.rest import Rest

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "containers": [
            {"name": "main", "resources": {"limits": {"baidu.com/vcuda-memory": "8"}}}
        ]
    },
}
NODE: Json = {
    "metadata": {"name": "gpu-1"},
    "status": {
        "allocatable": {"cpu": "4", "baidu.com/vcuda-memory": "64"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.36.3"},
    },
}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def cluster() -> Embedded:
    return Embedded(bookmark_every_s=0.1)


@pytest.fixture
def server(cluster: Embedded) -> Iterator[ApiServerOnLoopback]:
    with ApiServerOnLoopback(cluster) as found:
        yield found


@pytest.fixture
def rest(server: ApiServerOnLoopback) -> Rest:
    return Rest(port(server), tls=False)


class Kubectl:
    """The real one, with its default flags, on our server."""

    def __init__(self, binary: Path, kubeconfig: Path, folder: Path) -> None:
        self._binary = binary
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
        }

    def __call__(self, *words: str, stdin: str = "", fails: str = "") -> str:
        """Return what it prints; it must succeed, or fail with these words."""
        done = subprocess.run(
            [self._binary, *words],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0) == (not fails), done
        assert fails in done.stderr if fails else not done.stderr, done
        return done.stdout

    def watch(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._binary, *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def ctl(kubectl: Path, server: ApiServerOnLoopback, tmp_path: Path) -> Kubectl:
    return Kubectl(kubectl, server.kubeconfig(tmp_path / "kubeconfig"), tmp_path)


def port(server: ApiServerOnLoopback) -> int:
    return int(server.url.rsplit(":", 1)[1])


def bind(cluster: Embedded, a_pod: Json, node: str = "gpu-1") -> None:
    metadata = a_pod["metadata"]
    target = PodTarget(metadata["namespace"], metadata["name"], metadata["uid"])
    cluster.bind(target, node, {"baidu.com/vcuda-placement": "{}"})


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_kubectl_creates_and_gets(ctl: Kubectl) -> None:
    assert ctl("get", "pods", "-A", "-o", "name") == ""
    assert ctl("create", "-f", "-", stdin=json.dumps(POD)) == "pod/web created\n"
    assert ctl("run", "quick", "--image=pause", "-n", "other") == "pod/quick created\n"
    head, *pods = rows(ctl("get", "pods", "-A"))
    assert head == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [pod[:5] for pod in pods] == [
        ["default", "web", "0/1", "Pending", "0"],
        ["other", "quick", "0/1", "Pending", "0"],
    ]
    ctl("create", "-f", "-", stdin=json.dumps(POD), fails="(AlreadyExists)")
    ctl("get", "pod", "no", fails='Error from server (NotFound): pods "no" not found')
    asked = ctl("get", "pod", "web", "-o", "jsonpath={..requests}")
    assert json.loads(asked) == {"baidu.com/vcuda-memory": "8"}
    listed = json.loads(ctl("get", "pods", "-o", "json"))
    assert listed["items"][0]["metadata"]["name"] == "web"
    assert "namespace: default" in ctl("get", "pods", "-o", "yaml")
    assert [row[0] for row in rows(ctl("get", "ns"))[1:]] == [
        "default",
        "kube-system",
        "other",
    ]


def test_kubectl_apply(ctl: Kubectl) -> None:
    changed = POD | {"metadata": POD["metadata"] | {"labels": {"app": "db"}}}
    for body, outcome in (
        (POD, "created"),
        (POD, "unchanged"),
        (changed, "configured"),
    ):
        told = ctl("apply", "-f", "-", stdin=json.dumps(body))
        assert told == f"pod/web {outcome}\n"
    assert ctl("get", "pods", "-l", "app in (db)", "-o", "name") == "pod/web\n"


def test_kubectl_shows_nodes(ctl: Kubectl, cluster: Embedded) -> None:
    cluster.create(Kind.NODES, NODE)
    bind(cluster, cluster.create(Kind.PODS, POD))
    assert rows(ctl("get", "nodes"))[1][:3] == ["gpu-1", "Ready", "<none>"]
    ctl("cordon", "gpu-1")
    assert "Ready,SchedulingDisabled" in ctl("get", "nodes")
    told = ctl("describe", "node", "gpu-1")
    assert "Non-terminated Pods:          (1 in total)" in told
    assert "baidu.com/vcuda-memory  8" in told


def test_kubectl_shows_events(ctl: Kubectl, cluster: Embedded) -> None:
    made = cluster.create(Kind.PODS, POD)["metadata"]
    target = PodTarget("default", "web", made["uid"])
    cluster.event(target, kind="Warning", reason="FailedScheduling", message="no room")
    row = rows(ctl("get", "events"))[1]
    assert row[1:] == ["Warning", "FailedScheduling", "pod/web", "no", "room"]
    assert "FailedScheduling" in ctl("describe", "pod", "web")


def test_kubectl_deletes(ctl: Kubectl, cluster: Embedded) -> None:
    made = cluster.create(Kind.PODS, POD)
    bind(cluster, made)
    stream = cluster.watch(
        Kind.PODS, resource_version=made["metadata"]["resourceVersion"], timeout_s=60
    )
    shown: list[str] = []

    def end() -> None:
        for event in stream:
            if "deletionTimestamp" in event.object["metadata"]:
                shown.append(ctl("get", "pods", "-o", "wide"))
                cluster.delete(Kind.PODS, "default", "web", grace_period_s=0)
                return

    kubelet = threading.Thread(target=end)
    kubelet.start()
    assert "deleted" in ctl("delete", "pod", "web")
    kubelet.join()
    row = rows(shown[0])[1]
    assert (row[2], row[6]) == ("Terminating", "gpu-1")
    assert ctl("get", "pods", "-o", "name") == ""


@pytest.mark.parametrize(
    ("grace_s", "ends_after_s"), [(None, 30), (5, 5), (60, 60), (0, None)]
)
def test_a_deletion_says_how_long_the_pod_may_take(
    server: ApiServerOnLoopback,
    cluster: Embedded,
    tmp_path: Path,
    grace_s: int | None,
    ends_after_s: int | None,
) -> None:
    """By the client of the commands: without a word the pod's own period counts."""
    bind(cluster, cluster.create(Kind.PODS, POD))
    objects = ApiObjects.connect(str(server.kubeconfig(tmp_path / "kubeconfig")))
    ref = Ref("v1", "Pod", "web", "default")
    assert objects.delete(ref, grace_period_s=grace_s)
    there = objects.get(ref)
    objects.close()
    ends = there and there["metadata"]["deletionGracePeriodSeconds"]
    assert ends == ends_after_s


def test_kubectl_watches(ctl: Kubectl, cluster: Embedded) -> None:
    made = cluster.create(Kind.PODS, POD)
    process = ctl.watch("get", "pods", "-w", "-o", "wide")
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            assert lines.readline().startswith("NAME")
            assert "<none>" in lines.readline()
            bind(cluster, made)
            assert "gpu-1" in lines.readline()
    finally:
        process.terminate()
        process.wait()


def test_kubeconfig_is_its_owners(server: ApiServerOnLoopback, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("old")
    path.chmod(0o644)
    server.kubeconfig(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    clusters = json.loads(path.read_text())["clusters"]
    assert clusters[0]["cluster"]["server"] == server.url


@pytest.mark.parametrize(
    ("method", "path", "kind", "status", "reason"),
    [
        ("GET", "/api/v1/services", "", 404, "NotFound"),
        ("GET", "/api/v1/pods/web", "", 404, "NotFound"),
        ("GET", f"{PODS}/web/log", "", 404, "NotFound"),
        ("DELETE", PODS, "", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/namespaces", "application/json", 405, "MethodNotAllowed"),
        ("POST", PODS, "application/yaml", 415, "UnsupportedMediaType"),
        (
            "PATCH",
            f"{PODS}/web",
            "application/json-patch+json",
            415,
            "UnsupportedMediaType",
        ),
        ("GET", f"{PODS}?limit=x", "", 400, "BadRequest"),
        ("GET", f"{PODS}?continue=x", "", 422, "Invalid"),
        ("GET", f"{PODS}?watch=1&resourceVersion=99999", "", 410, "Expired"),
        ("PUT", f"{PODS}/web?dryRun=All", "application/json", 400, "BadRequest"),
        ("POST", PODS, "application/json", 422, "Invalid"),
        ("POST", f"{PODS}/web/binding", "application/json", 422, "Invalid"),
        ("PUT", f"{PODS}/web", "application/json", 422, "Invalid"),
        ("BREW", PODS, "", 501, "NotImplemented"),
    ],
)
def test_refusals(
    rest: Rest, method: str, path: str, kind: str, status: int, reason: str
) -> None:
    body = {"kind": "x"} if kind else None
    found, answer = rest.request(method, path, body, kind)
    told = (found, answer["kind"], answer["code"], answer["reason"])
    assert told == (status, "Status", status, reason)


@pytest.mark.parametrize(
    ("headers", "size", "status"),
    [
        ({"Content-Length": str(4 << 20)}, 4 << 20, 413),
        ({"Content-Length": "many"}, 0, 411),
        ({"Transfer-Encoding": "chunked"}, 0, 411),
        ({"Content-Length": "2", "Content-Type": "application/json"}, 2, 400),
        ({"Host": "evil.example"}, 0, 403),
        ({"Accept": "application/vnd.kubernetes.protobuf"}, 0, 406),
    ],
)
def test_what_http_refuses(
    server: ApiServerOnLoopback, headers: dict[str, str], size: int, status: int
) -> None:
    """Bodies are bounded and JSON, and no foreign page may ask by our own address."""
    connection = http.client.HTTPConnection("127.0.0.1", port(server), timeout=10)
    connection.putrequest("POST", PODS, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(b"x" * size)
    response = connection.getresponse()
    assert (response.status, json.load(response)["code"]) == (status, status)
    connection.close()


def test_connection_is_kept(server: ApiServerOnLoopback) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port(server), timeout=10)
    watch = f"{PODS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true"
    connection.connect()
    first = connection.sock
    for path in ("/readyz", "/api/v1/nothing", watch, "/version"):
        connection.request("GET", path)
        assert connection.getresponse().read()
        assert connection.sock is first
    connection.close()


def test_stop_ends_watches(cluster: Embedded) -> None:
    with ApiServerOnLoopback(cluster) as server:
        stream = Rest(port(server), tls=False).watch(PODS)
        told = iter(stream)
        assert next(told)["type"] == "BOOKMARK"
    stream.close()
    list(told)
    with pytest.raises(ConnectionRefusedError):
        Rest(port(server), tls=False).get("/readyz")
