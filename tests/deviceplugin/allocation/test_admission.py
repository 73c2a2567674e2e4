"""The right card to the right pod, through kubelet's own three calls."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from prometheus_client import generate_latest

from gpushare.domain.model import Placement, PodRequest, share_whole_cards
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden
from gpushare.kube.names import MODELS
from gpushare.kube.names import UUIDS as WANTED
from gpushare.kubelet.node_pods import KubeletSilentError
from gpushare.kubelet.pods import read_node_pod
from gpusharectl.demo import devices as kubelets
from gpusharectl.demo.devices import CannotStartYetError, Rejection
from tests.builders import AT, cards, container_json, pod_json
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    C,
    M,
    NodeFixture,
    asks_first,
    found_card,
    inside,
    prefers,
    visible,
)
from tests.machine import needs


def test_planned_card(node: NodeFixture) -> None:
    pod = node.bind("a", 20, 1, card=1)
    given = node.run(pod)["main"]
    assert visible(given) == (UUIDS[1],)
    assert given.envs["VCUDA_MEMORY_LIMIT_MIB"] == str(20 * 256)
    assert inside(given)["cards"] == [
        {"uuid": UUIDS[1], "units": 20, "cores": 1, "memory_mib": 5120}
    ]
    assert node.actual("a") is None
    assert names.ACTUAL not in node.pod("a")["metadata"]["annotations"]


@pytest.mark.parametrize("planned", [True, False])
def test_whole_cards_that_are_linked(tmp_path: Path, planned: bool) -> None:
    """Those of the plan, next to each other or not; without a plan the best linked."""
    links = {UUIDS[0]: {UUIDS[2]: 250}, UUIDS[2]: {UUIDS[0]: 250}}
    found = [replace(found_card(i), links=links.get(UUIDS[i], {})) for i in range(3)]
    wanted = (UUIDS[1], UUIDS[2]) if planned else (UUIDS[0], UUIDS[2])
    with NodeFixture(tmp_path, *found) as node:
        pod = node.bind("a", 10, 200, card=None)
        if planned:
            record = read_node_pod(pod).record
            assert isinstance(record.request, PodRequest)
            both = [replace(card, uuid=UUIDS[card.index]) for card in cards(29, 29, 29)]
            shares = tuple(share_whole_cards(record.request.claims[0], both[1:]))
            plan = Placement(record.pod, NODE, shares)
            node.plan("a", encode_placement(plan, AT))
        assert visible(node.run(pod)["main"]) == wanted
        assert node.actual("a") == (None if planned else wanted)


@pytest.mark.parametrize(
    "placement",
    [None, "not json", '{"v": 1, "uid": "another", "shares": [], "at": ""}'],
)
def test_without_a_placement_where_there_is_room(
    node: NodeFixture, placement: str | None
) -> None:
    """nodeName set by hand, or an annotation that counts as none: told."""
    node.run(node.bind("a", 20, 1, card=0))
    pod = node.bind("b", 20, 1, card=None, placement=placement)
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert node.actual("b") == (UUIDS[1],)


def test_static_pod(node: NodeFixture) -> None:
    """Only kubelet knows it: told once its mirror is there, and when that is anew."""
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    given = node.run(static)["main"]
    assert visible(given) == (UUIDS[0],)
    assert inside(given)["cards"][0]["units"] == 20
    for _ in range(2):
        node.bind("s-n", 20, 1, card=None)
        node.serving.reporter.catch_up()
        assert node.actual("s-n") == (UUIDS[0],)
        node.cluster.delete(Kind.PODS, "default", "s-n", grace_period_s=0)


def test_a_static_pod_in_place_of_one_that_never_started(node: NodeFixture) -> None:
    node.admit(pod_json("s-n", uid="old", units=20, cores=1, node="n"))
    node.devices.release("old")
    node.run(pod_json("s-n", uid="new", units=10, cores=1, node="n"))
    node.bind("s-n", 10, 1, card=None)
    node.serving.reporter.catch_up()
    assert node.actual("s-n") is not None


@pytest.fixture
def two_models(tmp_path: Path) -> Iterator[NodeFixture]:
    cards = found_card(0), replace(found_card(1), model="Tesla T4")
    with NodeFixture(tmp_path, *cards) as made:
        yield made


@pytest.mark.parametrize(("key", "text"), [(MODELS, "tesla t4"), (WANTED, UUIDS[1])])
def test_it_gets_one_of_them(two_models: NodeFixture, key: str, text: str) -> None:
    pod = two_models.bind("a", 20, 1, card=None, annotations={key: text})
    assert visible(two_models.run(pod)["main"]) == (UUIDS[1],)


def test_a_swap_onto_another_of_its_cards_starts(two_models: NodeFixture) -> None:
    pod = two_models.bind("a", 20, 1, card=0, annotations={MODELS: "Tesla *"})
    prefers(two_models, UUIDS[1])
    assert visible(two_models.run(pod)["main"]) == (UUIDS[1],)


def test_a_swap_onto_an_excluded_card_waits(two_models: NodeFixture) -> None:
    pod = two_models.bind("a", 20, 1, card=0, annotations={MODELS: "!Tesla T4"})
    prefers(two_models, UUIDS[1])
    two_models.admit(pod)
    words = f"kubelet chose card {UUIDS[1]}, excluded by {MODELS}"
    two_models.waits(pod, re.escape(words))
    assert two_models.actual("a") is None


def test_lists_that_change_later_stop_nobody(two_models: NodeFixture) -> None:
    pod = two_models.bind("a", 20, 1, card=0, annotations={MODELS: "Tesla T4"})
    assert visible(two_models.run(pod)["main"]) == (UUIDS[0],)


def test_a_turn_ends_with_its_pod(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet fails b after its cores; c, of the same memory, has nothing of b's."""
    b, c = node.bind("b", 10, 7, card=0), node.bind("c", 10, 3, card=1)
    asks_first(monkeypatch, C)
    choose = node.devices._choose

    def fails(resource: str, size: int, reusable: Sequence[str]) -> object:
        if resource == M:
            raise kubelets.NotAdmittedError("kubelet's own reason")
        return choose(resource, size, reusable)  # type: ignore[arg-type]

    monkeypatch.setattr(node.devices, "_choose", fails)
    assert isinstance(node.devices.admit(b), Rejection)
    monkeypatch.setattr(node.devices, "_choose", choose)
    asks_first(monkeypatch, M)
    assert visible(node.run(c)["main"]) == (UUIDS[1],)
    assert node.actual("c") is None


@pytest.mark.parametrize("others", [["etcd"], ["etcd", "proxy"]])
def test_static_pod_among_others(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    node.run(node.bind("full", 29, 1, card=0))
    asks_first(monkeypatch, C)
    for name in others:
        node.admit(pod_json(name, uid=name, node="n"))
    static = pod_json("static-n", uid="hash", units=5, cores=10, node="n")
    given = node.run(static)["main"]
    assert visible(given) == (UUIDS[1],)
    found = inside(given)["cards"][0]
    assert (found["uuid"], found["units"], found["cores"]) == (UUIDS[1], 5, 10)


def test_kubelet_is_silent(node: NodeFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is a pod's that has nothing yet, not an older one's that runs."""
    node.run(node.bind("a", 5, 1, card=0))
    pod = node.bind("b", 5, 1, card=1)
    silent = Mock(side_effect=KubeletSilentError("no answer"))
    monkeypatch.setattr(node.occupancy.resources, "list", silent)
    assert visible(node.admit(pod)["main"]) == (UUIDS[1],)


def test_one_pod_cannot_be_told(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, main = container_json("once", 5, 1), container_json("main")
    for pod in (
        node.bind("a", 5, 1, card=None),
        node.bind("b", 5, 1, card=None),
        node.bind("c", card=None, init=[once], containers=[main]),
    ):
        node.run(pod)
        name = pod["metadata"]["name"]
        node.cluster.annotate(Kind.PODS, "default", name, {names.ACTUAL: None})
    # The watch tells in order: once this one is seen, so is what came before.
    node.bind("later", 1, 1)
    picky = Mock(wraps=node.cluster.annotate)
    picky.side_effect = [Forbidden("not this one"), DEFAULT, DEFAULT]
    monkeypatch.setattr(node.cluster, "annotate", picky)
    node.serving.reporter.catch_up()
    assert node.actual("a") is None
    assert node.actual("b") is not None
    assert node.actual("c") is not None


def test_an_init_container_whose_devices_are_handed_on(node: NodeFixture) -> None:
    """Just the same ids: each container reads its own part in its own file."""
    once, main = container_json("once", 5), container_json("main", 5, 7)
    given = node.run(node.bind("a", card=1, init=[once], containers=[main]))
    assert inside(given["main"])["cards"][0]["cores"] == 7
    assert inside(given["once"])["cards"][0]["cores"] == 0
    assert inside(given["once"])["container"] == "once"


def test_too_many_starts_at_once(node: NodeFixture) -> None:
    """kubelet is told to ask again, so that its admissions never wait for them."""
    pod = node.bind("a", 5, 1, card=0)
    node.admit(pod)
    for registrar in node.serving.registrars:
        while registrar.plugin._starting.acquire(blocking=False):
            pass
    with pytest.raises(Exception, match="busy with other containers"):
        node.start_one(pod)


@pytest.mark.parametrize("memory_first", [True, False])
def test_kubelet_lost_its_checkpoint(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch, memory_first: bool
) -> None:
    """A pod that runs without devices is nobody's turn; it keeps its card.

    Its size is that of the next pod, and it was there first.
    """
    asks_first(monkeypatch, M if memory_first else C)
    node.run(node.bind("old", 10, 1, card=0))
    node.tell_running("old")
    node.lose_checkpoint()
    static = pod_json("s-n", uid="hash", units=10, cores=1, node="n")
    assert visible(node.run(static)["main"]) == (UUIDS[1],)
    new = node.bind("new", 10, 1, card=1)
    assert visible(node.run(new)["main"]) == (UUIDS[1],)
    assert node.actual("new") is None
    node.run(node.bind("more", 10, 1, card=None))
    # What kubelet does not know of is charged: nobody has 10 units left.
    assert "Insufficient" in node.refuse(node.bind("big", 10, 1, card=None))


def test_a_container_that_ended_is_asked_for_again(node: NodeFixture) -> None:
    """kubelet without its checkpoint passes over what runs, container by container."""
    both = [container_json("x", 4, 1), container_json("y", 4, 1)]
    node.run(pod := node.bind("a", card=1, containers=both))
    node.tell_running("a")
    ended = node.pod("a")["status"]
    ended["containerStatuses"][1]["state"] = {"terminated": {"exitCode": 1}}
    status = {"status": ended}
    node.cluster.patch(Kind.PODS, "default", "a", status, subresource="status")
    node.wait_pod("a", lambda pod: pod and pod.running == {"x"}, "y's end to be seen")
    node.lose_checkpoint()
    given = node.start_one(pod, "y")
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["container"] == "y"
    assert node.actual("a") is None


def test_admitted_before_there_was_a_plugin(node: NodeFixture) -> None:
    """It waits for its image, without devices; the pod that came last is meant."""
    old = node.bind("old", 10, 1, card=None)
    node.devices._holdings.begin(old)
    new = node.bind("new", 10, 1, card=1)
    at = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    status = {"status": {"conditions": [at]}}
    node.cluster.patch(Kind.PODS, "default", "old", status, subresource="status")
    node.wait_pod("old", lambda pod: pod and pod.bound < "2021", "its binding")
    assert visible(node.run(new)["main"]) == (UUIDS[1],)
    assert node.actual("new") is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    kind = ["-t", "tmpfs", "-o", "size=64k"]
    mounted = subprocess.run(["mount", *kind, "none", folder], check=False)
    needs(mounted.returncode == 0, "the right to mount a file system", "run as root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_the_state_folder_is_full(small_disk: Path, tmp_path: Path) -> None:
    """Nobody fails for good; a start waits for room, is counted, and then goes on.

    An init container's too, of which nothing but our record tells.
    """
    settings = {"state_dir": small_disk}
    with NodeFixture(tmp_path, found_card(0), settings=settings) as node:
        once, main = container_json("once", 9, 3), container_json("main", 4, 2)
        pod = node.bind("a", init=[once], containers=[main])
        uid = pod["metadata"]["uid"]
        with suppress(OSError), (small_disk / "filler").open("wb", 0) as filler:
            while True:
                filler.write(b"x" * 4096)
        given = node.admit(pod)
        for container in given:
            with pytest.raises(CannotStartYetError, match="No space left on device"):
                node.devices.start(uid, container)
        page = generate_latest(node.registry).decode()
        refused = re.findall(r'refused_total{call="(.*?)",.*} (.*)', page)
        assert {call for call, _ in refused} == {"PreStartContainer"}
        assert sum(float(number) for _, number in refused) == 2
        (small_disk / "filler").unlink()
        for container, units in (("once", 9), ("main", 4)):
            node.devices.start(uid, container)
            assert inside(given[container])["container"] == container
            assert inside(given[container])["cards"][0]["units"] == units
        node.restart()
        assert node.occupancy.has_allocation(uid)


def test_a_card_of_unknown_minor_number_is_denied(tmp_path: Path) -> None:
    card = replace(found_card(0), minor=None)
    with NodeFixture(tmp_path, card, settings={"inject": "nodes"}) as node:
        assert "minor number of card" in node.refuse(node.bind("a", 4, 1))


def test_device_nodes_that_the_host_has(tmp_path: Path) -> None:
    """Each container is told of those that there are when it is allocated."""
    dev = tmp_path / "root/dev"
    dev.mkdir(parents=True)
    (dev / "nvidiactl").touch()
    settings = {"inject": "nodes", "host_root": tmp_path / "root"}
    with NodeFixture(tmp_path, found_card(0), settings=settings) as node:
        before = node.run(node.bind("a", 4, 1))["main"]
        (dev / "nvidia-uvm").touch()
        after = node.run(node.bind("b", 4, 1))["main"]
    assert set(before.devices) == {"/dev/nvidia0", "/dev/nvidiactl"}
    assert set(after.devices) == {*before.devices, "/dev/nvidia-uvm"}
