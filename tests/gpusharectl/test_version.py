"""``version``: this command, and what runs in the cluster."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare import __version__
from gpushare.kube import facts, names
from gpushare.kube.cluster import Json, Kind, ListPage
from gpushare.kube.errors import Forbidden
from gpusharectl.commands import main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.version import compare_versions, list_images, list_nodes
from tests.builders import card
from tests.gpusharectl.cluster_states import node_of, part
from tests.gpusharectl.conftest import put

API = "v1.36.3"
NEW, OLD = f"r/gpushare:{__version__}", "r/gpushare:0.0.9"


def of(
    name: str,
    component: str,
    container: str,
    image: str,
    node: str = "n-1",
    build: str = "",
) -> Json:
    """A pod of a component; beside its container there is kube-scheduler's."""
    pod = part(name, component, node=node)
    pod["spec"]["containers"] = [
        {"name": "kube-scheduler", "image": "kube-scheduler:v1"},
        {"name": container, "image": image},
    ]
    if build:
        pod["status"]["containerStatuses"] = [{"name": container, "imageID": build}]
    return pod


def plugin(name: str, image: str, node: str, build: str = "") -> Json:
    return of(name, facts.DEVICE_PLUGIN, "device-plugin", image, node, build)


def host(name: str, kubelet: str | None = API, *, control_plane: bool = False) -> Json:
    """A node that shares cards, or else one of the control plane."""
    node = node_of(name, labelled=not control_plane)
    if control_plane:
        node["metadata"]["labels"] = {facts.CONTROL_PLANE_LABEL: ""}
    node["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
    return node


def ran(kubeconfig: Path | str, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["version", "--kubeconfig", str(kubeconfig), *words]
    )


def data(found: Result) -> Any:
    return orjson.loads(found.stdout)


def test_what_runs_is_shown(tmp_path: Path) -> None:
    """An image that is being replaced is shown beside the new one, and on its node.

    A user's pod with our labels does not count.
    """
    cluster = Embedded()
    for node in (
        host("cp", control_plane=True),
        host("cp-2", control_plane=True),
        host("n-1", "v1.35.4"),
        host("n-2"),
        host("n-3"),
    ):
        cluster.create(Kind.NODES, node)
    cluster.create(Kind.NODES, node_of("without-cards", labelled=False))
    put(cluster, of("ext", facts.SECOND_SCHEDULER, "extender", NEW, "cp"))
    put(cluster, plugin("p-1", OLD, "n-1"))
    put(cluster, plugin("p-2", NEW, "n-2", "sha256:2"))
    put(cluster, plugin("p-3", NEW, "n-3"))
    elsewhere = plugin("p-4", NEW, "n-3")
    elsewhere["metadata"]["namespace"] = "of-a-user"
    put(cluster, elsewhere)
    with ApiServerOnLoopback(cluster) as server:
        place = server.kubeconfig(tmp_path / "kubeconfig")
        found, shown = ran(place, "-o", "json"), ran(place)
    assert found.exit_code == shown.exit_code == 0
    new, old = ({"image": one, "id": None} for one in (NEW, OLD))
    new, old = new | {"version": __version__}, old | {"version": "0.0.9"}

    def row(name: str, **more: object) -> Json:
        return {
            "name": name,
            "kubelet": API,
            "extender": [],
            "device-plugin": [],
            **more,
        }

    assert data(found) == {
        "v": 1,
        "gpusharectl": __version__,
        "kubernetes": API,
        "components": {
            "extender": [{"image": NEW, "pods": 1, "nodes": ["cp"]}],
            "device-plugin": [
                {"image": NEW, "pods": 2, "nodes": ["n-2", "n-3"]},
                {"image": OLD, "pods": 1, "nodes": ["n-1"]},
            ],
            "exporter": [],
            "webhook": [],
        },
        "nodes": [
            row("cp", extender=[new]),
            row("cp-2"),
            row("n-1", kubelet="v1.35.4", **{"device-plugin": [old]}),
            row("n-2", **{"device-plugin": [new | {"id": "sha256:2"}]}),
            row("n-3", **{"device-plugin": [new]}),
        ],
    }
    assert shown.output == (
        f"gpusharectl    {__version__}\n"
        "Kubernetes     v1.36.3\n"
        "extender       r/gpushare:0.1.0, 1 pod\n"
        "device-plugin  r/gpushare:0.1.0, 2 pods; r/gpushare:0.0.9, 1 pod\n"
        "exporter       no pod\n"
        "webhook        no pod\n"
        "\n"
        "NODE  KUBELET  EXTENDER        DEVICE-PLUGIN\n"
        "cp    v1.36.3  gpushare:0.1.0  -\n"
        "cp-2  v1.36.3  -               -\n"
        "n-1   v1.35.4  -               gpushare:0.0.9\n"
        "n-2   v1.36.3  -               gpushare:0.1.0\n"
        "n-3   v1.36.3  -               gpushare:0.1.0\n"
        "\n"
        "Not of this command's version: device-plugin 0.0.9; not of the API server's "
        "version: kubelet on n-1.\n"
    )


def test_the_id_of_an_image_is_the_one_that_kubelet_reports() -> None:
    """An empty id is that of a container that does not run yet."""
    pods = [plugin("p-1", NEW, "n-1", "sha256:1"), plugin("p-2", NEW, "n-2")]
    pods[1]["status"]["containerStatuses"] = [{"name": "device-plugin", "imageID": ""}]
    rows = list_nodes([host("n-1"), host("n-2")], pods)
    assert [row["device-plugin"][0]["id"] for row in rows] == ["sha256:1", None]


def test_a_node_that_has_lost_its_label_is_shown() -> None:
    """While its cards are published, and while it has a device plugin."""
    nodes = [
        node_of("published", card(), labelled=False),
        node_of("served", labelled=False),
        node_of("other", labelled=False),
    ]
    rows = list_nodes(nodes, [plugin("p", NEW, "served")])
    assert [row["name"] for row in rows] == ["published", "served"]


@pytest.mark.parametrize(
    ("images", "kubelets", "sentence"),
    [
        ([NEW], [API], "One version everywhere."),
        ([f"{NEW}@sha256:12", NEW], [API], "One version everywhere."),
        ([], [], "One version everywhere."),
        (
            ["r/g:x", OLD, OLD],
            [API, API],
            "Not of this command's version: device-plugin 0.0.9, device-plugin r/g:x.",
        ),
        (
            [NEW],
            [API, *(["v1.36.2"] * 4), None],
            "Not of the API server's version: kubelet on n-1, n-2, n-3 and 1 more.",
        ),
    ],
)
def test_one_sentence_says_what_differs(
    images: list[str], kubelets: list[str | None], sentence: str
) -> None:
    """An image whose tag is no version is named."""
    pods = [plugin(f"p-{number}", image, "n-0") for number, image in enumerate(images)]
    nodes = [host(f"n-{number}", kubelet) for number, kubelet in enumerate(kubelets)]
    data = {"kubernetes": API, "components": list_images(pods)}
    assert compare_versions({**data, "nodes": list_nodes(nodes, pods)}) == sentence


def test_what_is_not_known_is_not_of_one_version() -> None:
    data = {"kubernetes": API, "components": list_images([]), "nodes": None}
    assert compare_versions(data) == ""
    unread = {"extender": None}
    assert compare_versions({**data, "components": unread, "nodes": []}) == ""


@pytest.mark.parametrize("words", [[], ["-o", "json"]])
def test_without_a_cluster_the_commands_own_is_shown(
    tmp_path: Path, words: list[str]
) -> None:
    found = ran(tmp_path / "none", *words)
    assert found.exit_code == 1
    assert __version__ in found.stdout
    assert "there is no file" in found.stderr
    if words:
        assert data(found)["kubernetes"] is None
        assert data(found)["nodes"] is None
        assert set(data(found)["components"].values()) == {None}
    else:
        assert found.stdout.count("n/a") == 6


def test_who_may_not_read_our_pods_sees_the_nodes(tmp_path: Path) -> None:
    """And that is an error: the images are not known."""

    class Refusing(Embedded):
        def list_page(self, kind: Kind, **rest: Any) -> ListPage:
            if kind is Kind.PODS:
                raise Forbidden("pods is forbidden")
            return super().list_page(kind, **rest)

    cluster = Refusing()
    cluster.create(Kind.NODES, host("n-1", "v1.35.4"))
    with ApiServerOnLoopback(cluster) as server:
        shown = ran(server.kubeconfig(tmp_path / "kubeconfig"))
    assert shown.exit_code == 1
    assert "pods is forbidden; name the administrator's" in shown.stderr
    assert "\nn-1   v1.35.4  n/a       n/a\n" in shown.stdout
    assert "version: kubelet on n-1.\n" in shown.stdout


def test_a_nodes_images_are_short(tmp_path: Path) -> None:
    """In full they stand above; a row with a long name of a node has 80 characters."""
    name, digest = "ip-10-0-101-203.eu-west-1.compute.internal", f"sha256:{'ab' * 32}"
    image = f"registry.example.com/team/gpushare:0.1.0@{digest}"
    cluster = Embedded()
    cluster.create(Kind.NODES, host(name))
    put(cluster, plugin("p", image, name))
    with ApiServerOnLoopback(cluster) as server:
        shown = ran(server.kubeconfig(tmp_path / "kubeconfig")).stdout
    assert f"device-plugin  {image}, 1 pod" in shown
    assert f"{name}  {API}  -         gpushare:0.1.0@abababab…\n" in shown


def test_of_a_demo_no_image_is_known(tmp_path: Path) -> None:
    cluster = Embedded()
    cluster.create(Kind.NODES, node_of("n-1"))
    with ApiServerOnLoopback(cluster, names.DEMO_BUILD) as server:
        place = server.kubeconfig(tmp_path / "kubeconfig")
        found, shown = ran(place, "-o", "json"), ran(place)
    (node,) = data(found)["nodes"]
    assert node["kubelet"] is node["extender"] is node["device-plugin"] is None
    assert shown.output.endswith("\nn-1   n/a      n/a       n/a\n")
    assert data(found)["kubernetes"] == f"v1.36.3{names.DEMO_BUILD}"
    assert set(data(found)["components"].values()) == {None}


def test_a_pod_that_has_ended_does_not_count() -> None:
    ended = plugin("p", "r/gpushare:0.1.0", "n-1")
    ended["status"]["phase"] = "Failed"
    assert list_images([ended])["device-plugin"] == []
