"""inspect, why and cordon-card with the real extender and device plugins."""

import http.client
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest
from click.testing import CliRunner

from gpushare.domain.node import Node
from gpushare.informers.snapshot import read_snapshot
from gpushare.kube import names
from gpushare.kube.apiserver.api import ApiObjects, ApiServer
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.objects import Ref
from gpusharectl.access import Access
from gpusharectl.commands import main
from gpusharectl.cordon import cordon_card, uncordon_card
from gpusharectl.demo.cluster import DemoCluster, fetch_from
from gpusharectl.demo.story import HELD_NODES
from gpusharectl.inspect import inspect
from gpusharectl.state.read import read_state
from gpusharectl.top.command import top
from gpusharectl.why.command import why
from tests.builders import pod_json
from tests.gpusharectl.cluster_states import extender
from tests.gpusharectl.terminal import Terminal
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoCluster]:
    """Two nodes; five pods that run, and one that nothing has room for."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        DemoCluster(Path(folder)) as found,
    ):
        found.join(*HELD_NODES)
        for name, units in (("a", 50), ("b", 40), ("c", 20), ("d", 20), ("e", 1)):
            found.cluster.create(Kind.PODS, pod_json(name, units=units, cores=1))
            wait_until(lambda name=name: runs(found, name), f"{name} to run")
        found.cluster.create(Kind.PODS, pod_json("big", units=30, cores=1))
        wait_until(lambda: scheduled(found, "big"), "big to be refused")
        yield found


def pod(demo: DemoCluster, name: str) -> Json:
    return demo.cluster.get(Kind.PODS, "default", name)


def runs(demo: DemoCluster, name: str) -> bool:
    return bool(pod(demo, name)["status"]["phase"] == "Running")


@pytest.fixture(scope="module")
def access(demo: DemoCluster) -> Iterator[Access]:
    path = str(demo.kubeconfig)
    found = Access(ApiObjects.connect(path), ApiServer.connect(path), path, "")
    yield found
    found.close()


def ran(demo: DemoCluster, command: object, *words: str) -> str:
    where = ["--kubeconfig", str(demo.kubeconfig)]
    done = CliRunner().invoke(command, [*words, *where])  # type: ignore[arg-type]
    assert done.exit_code in (0, 3), done.output
    return done.output


def books(demo: DemoCluster) -> tuple[Node, ...]:
    """The extender's own; none where a busy machine keeps it from answering."""
    page = fetch_from(demo._verbs, "/snapshot")
    return read_snapshot(page).nodes if page else ()


def test_reckoned_it_is_what_the_extender_has(
    demo: DemoCluster, access: Access
) -> None:
    def same() -> bool:
        return read_state(access, datetime.now(UTC)).placements.nodes == books(demo)

    assert wait_until(same, "the extender to have heard of the last pod")


def test_a_demo_is_not_called_broken(demo: DemoCluster) -> None:
    """Its extender and device plugins are processes, not pods."""
    said = ran(demo, inspect)
    assert "default/a 50" in said
    assert "Warnings" not in said
    assert "missing" not in said
    assert "Warnings" not in ran(demo, top)


def test_the_page_of_a_demo(demo: DemoCluster) -> None:
    """It is served as that of any cluster, though no port can be forwarded."""
    where = ["--no-open", "--kubeconfig", str(demo.kubeconfig)]
    shown = Terminal([sys.executable, "-m", "gpusharectl", "ui", *where])
    try:
        shown.read_until("Everyone who has")
        address = urlsplit(shown.said.split()[4])
        for path, kind in (("", b"<!doctype html>"), ("/state", b"{")):
            link = http.client.HTTPConnection(address.netloc)
            link.request("GET", address.path + path)
            assert link.getresponse().read().lower().startswith(kind)
            link.close()
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 0
    finally:
        shown.close()


@pytest.mark.parametrize("words", [["install", "--dry-run"], ["uninstall"]])
def test_nothing_is_installed_in_a_demo(demo: DemoCluster, words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, "--kubeconfig", str(demo.kubeconfig)])
    assert done.exit_code == 3
    assert "is of the cluster of gpusharectl demo" in done.output


def test_an_extender_that_cannot_be_reached_is_said(
    demo: DemoCluster, access: Access
) -> None:
    """This API server forwards no ports: the rest of the screen is there."""
    told_of = extender("gpushare-extender-1")
    demo.cluster.create(Kind.PODS, told_of)
    uid = access.objects.get(Ref("v1", "Pod", "gpushare-extender-1", "kube-system"))
    assert uid is not None
    status = {"status": told_of["status"]}
    where = (Kind.PODS, "kube-system", "gpushare-extender-1")
    demo.cluster.patch(*where, status, subresource="status")
    said = " ".join(ran(demo, inspect, "-v").split())
    assert "computed from pods and nodes, because gpushare-extender-1: " in said
    assert "default/a 50" in said
    demo.cluster.delete(*where, grace_period_s=0)


def test_what_it_says_would_help_helps(demo: DemoCluster) -> None:
    """Deleting the pods that it names lets the pod run, on that very card."""
    data = orjson.loads(ran(demo, why, "big", "-o", "json"))
    (way,) = data["ways"]
    for going in way["pods"]:
        demo.cluster.delete(Kind.PODS, going["namespace"], going["name"])
    wait_until(lambda: runs(demo, "big"), "big to run")
    found = orjson.loads(ran(demo, why, "big", "-o", "json"))
    assert found["state"] == "placed"
    assert (found["node"], found["cards"][0]["uuid"]) == (way["node"], way["card"])


def test_nothing_comes_to_a_cordoned_card(demo: DemoCluster) -> None:
    ran(demo, cordon_card, "node-1", "0")
    ran(demo, cordon_card, "node-2", "0", "1")

    def all_closed() -> bool:
        own = books(demo)
        return bool(own) and all(card.cordoned for page in own for card in page.cards)

    wait_until(all_closed, "the extender to hear of it")
    demo.cluster.create(Kind.PODS, pod_json("late", units=5, cores=1))
    wait_until(lambda: scheduled(demo, "late"), "late to be tried")
    said = " ".join(ran(demo, why, "late").split())
    assert "no node has a healthy, uncordoned card" in said
    assert "To run it: uncordon: gpusharectl uncordon-card" in said
    assert not runs(demo, "late")
    ran(demo, uncordon_card, "node-1", "0")
    ran(demo, uncordon_card, "node-2", "0", "1")
    wait_until(lambda: runs(demo, "late"), "late to run")


def scheduled(demo: DemoCluster, name: str) -> bool:
    events = demo.cluster.list_page(Kind.EVENTS, limit=0).items
    return any(one["involvedObject"]["name"] == name for one in events)


def test_a_pod_that_came_by_hand(demo: DemoCluster) -> None:
    made = demo.cluster.create(Kind.PODS, pod_json("byhand", units=2, cores=1))
    target = PodTarget("default", "byhand", made["metadata"]["uid"])
    demo.cluster.bind(target, "node-1", {})

    def actual() -> bool:
        return names.ACTUAL in pod(demo, "byhand")["metadata"].get("annotations", {})

    wait_until(actual, "the device plugin to tell")
    said = " ".join(ran(demo, why, "byhand").split())
    assert "is on node-1, card 0 (RTX 3090), 2 units" in said
    assert "its card was not planned" in said
