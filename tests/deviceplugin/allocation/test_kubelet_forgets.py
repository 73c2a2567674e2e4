"""kubelet fails a pod halfway, is silent, or knows pods that nobody else knows."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.pod_resources import KubeletSilentError
from deviceplugin.pods import Listed
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Forbidden
from gpusharectl.demo import devices as kubelets
from gpusharectl.demo.devices import CannotStartYetError, Rejection
from tests.builders import container_json, pod_json
from tests.deviceplugin.node_fixture import (
    UUIDS,
    C,
    M,
    NodeFixture,
    found_card,
    inside,
    visible,
)
from tests.testbed.waiting import wait_until


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as made:
        yield made


def asks_first(monkeypatch: pytest.MonkeyPatch, resource: str) -> None:
    """Take the chance out of the order in which kubelet asks."""
    monkeypatch.setattr(
        kubelets, "shuffled", lambda names: sorted(names, key=lambda n: n != resource)
    )


def test_a_turn_ends_with_its_pod(
    host: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet fails b after its cores; c, of the same memory, has nothing of b's."""
    b, c = host.bind("b", 10, 7, card=0), host.bind("c", 10, 3, card=1)
    asks_first(monkeypatch, C)
    admission = host.devices._admission
    choose = admission._choose

    def fails(resource: str, size: int, reusable: Sequence[str]) -> object:
        if resource == M:
            raise kubelets.NotAdmittedError("kubelet's own reason")
        return choose(resource, size, reusable)  # type: ignore[arg-type]

    monkeypatch.setattr(admission, "_choose", fails)
    assert isinstance(host.devices.admit(b), Rejection)
    monkeypatch.setattr(admission, "_choose", choose)
    asks_first(monkeypatch, M)
    assert visible(host.run(c)["main"]) == (UUIDS[1],)
    assert host.actual("c") is None


def test_static_pod_among_others(
    host: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch knows none of them; both resources are of one card that has room."""
    host.run(host.bind("full", 29, 1, card=0))
    asks_first(monkeypatch, C)
    for name in ("etcd", "proxy"):
        host.admit(pod_json(name, uid=name, node="n"))
    static = pod_json("static-n", uid="hash", units=5, cores=10, node="n")
    given = host.run(static)["main"]
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["cards"][0] == {
        "uuid": UUIDS[1],
        "units": 5,
        "cores": 10,
        "memory_mib": 1280,
    }


def test_static_pod_beside_one_other(host: NodeFixture) -> None:
    """That one asks nothing: it is not a new pod when the second resource is asked."""
    host.admit(pod_json("etcd", uid="etcd", node="n"))
    static = pod_json("static-n", uid="hash", units=5, cores=10, node="n")
    assert visible(host.run(static)["main"]) == (UUIDS[0],)


def test_kubelet_is_silent(host: NodeFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is a pod's that has nothing yet, not an older one's that runs."""
    host.run(host.bind("a", 5, 1, card=0))
    pod = host.bind("b", 5, 1, card=1)

    def silent(_timeout_s: float) -> Listed:
        raise KubeletSilentError("no answer")

    monkeypatch.setattr(host.serving.reporter.resources, "list", silent)
    assert visible(host.admit(pod)["main"]) == (UUIDS[1],)


def test_one_pod_cannot_be_told(
    host: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are all the same, an init container's that has not started too."""
    refused, other = (
        host.bind("a", 5, 1, card=None),
        host.bind("b", 5, 1, card=None),
    )
    init = host.bind(
        "c",
        card=None,
        init=[container_json("once", 5, 1)],
        containers=[container_json("main")],
    )
    for pod in (refused, other, init):
        host.run(pod)
        nothing: dict[str, str | None] = {names.ACTUAL: None}
        name = pod["metadata"]["name"]
        host.cluster.annotate(Kind.PODS, "default", name, nothing)
    # The watch tells in order: once this one is seen, so is what came before.
    host.bind("later", 1, 1)
    annotate = host.cluster.annotate

    def picky(kind: Kind, namespace: str, name: str, notes: dict[str, str]) -> None:
        if name == "a":
            raise Forbidden("not this one")
        annotate(kind, namespace, name, notes)

    monkeypatch.setattr(host.cluster, "annotate", picky)
    host.serving.reporter.catch_up()
    assert host.actual("a") is None
    assert host.actual("b") is not None
    assert host.actual("c") is not None


def test_an_init_container_whose_devices_are_handed_on(
    host: NodeFixture,
) -> None:
    """Just the same ids: each container reads its own part in its own file."""
    pod = host.bind(
        "a",
        card=1,
        init=[container_json("once", 5)],
        containers=[container_json("main", 5, 7)],
    )
    given = host.run(pod)
    assert inside(given["main"])["cards"][0]["cores"] == 7
    assert inside(given["once"])["cards"][0]["cores"] == 0
    assert inside(given["once"])["container"] == "once"


def test_too_many_starts_at_once(host: NodeFixture) -> None:
    """kubelet is told to ask again, so that its admissions never wait for them."""
    pod = host.bind("a", 5, 1, card=0)
    host.admit(pod)
    plugins = [one._plugin for one in host.serving.registrars]
    for plugin in plugins:
        while plugin._starting.acquire(blocking=False):
            pass
    with pytest.raises(Exception, match="busy with other containers"):
        host.devices.start(pod["metadata"]["uid"], "main")


@pytest.mark.parametrize("memory_first", [True, False])
def test_kubelet_lost_its_checkpoint(
    host: NodeFixture,
    monkeypatch: pytest.MonkeyPatch,
    memory_first: bool,
) -> None:
    """A pod that runs without devices is nobody's turn; it keeps its card.

    Its size is that of the next pod, and it was there first.
    """
    asks_first(monkeypatch, M if memory_first else C)
    host.run(host.bind("old", 10, 1, card=0))
    host.tell_running("old")
    host.lose_checkpoint()
    static = pod_json("s-n", uid="hash", units=10, cores=1, node="n")
    assert visible(host.run(static)["main"]) == (UUIDS[1],)
    new = host.bind("new", 10, 1, card=1)
    assert visible(host.run(new)["main"]) == (UUIDS[1],)
    assert host.actual("new") is None
    host.run(host.bind("more", 10, 1, card=None))
    # What kubelet does not know of is charged: nobody has 10 units left.
    assert "Insufficient" in host.refuse(host.bind("big", 10, 1, card=None))


def test_a_container_that_ended_is_asked_for_again(host: NodeFixture) -> None:
    """kubelet without its checkpoint passes over what runs, container by container."""
    pod = host.bind(
        "a",
        card=1,
        containers=[container_json("x", 4, 1), container_json("y", 4, 1)],
    )
    host.run(pod)
    host.tell_running("a")
    ended = host.pod("a")["status"]
    ended["containerStatuses"][1]["state"] = {"terminated": {"exitCode": 1}}
    host.cluster.patch(
        Kind.PODS, "default", "a", {"status": ended}, subresource="status"
    )
    wait_until(
        lambda: host.serving.pods.find(("default", "a")).running == {"x"},
        "the end of y to be seen",
    )
    host.lose_checkpoint()
    given = host.devices.start(pod["metadata"]["uid"], "y")
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["container"] == "y"
    assert host.actual("a") is None


def test_admitted_before_there_was_a_plugin(host: NodeFixture) -> None:
    """It waits for its image, without devices; the pod that came last is meant."""
    old = host.bind("old", 10, 1, card=None)
    host.devices._holdings.begin(old)
    new = host.bind("new", 10, 1, card=1)
    host.cluster.patch(
        Kind.PODS,
        "default",
        "old",
        {"status": scheduled_at("2020-01-01T00:00:00Z")},
        subresource="status",
    )
    wait_until(
        lambda: host.serving.pods.find(("default", "old")).bound < "2021",
        "its binding to be seen",
    )
    assert visible(host.run(new)["main"]) == (UUIDS[1],)
    assert host.actual("new") is None


def scheduled_at(moment: str) -> Json:
    return {
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}
        ]
    }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    kind = ["-t", "tmpfs", "-o", "size=64k"]
    if subprocess.run(["mount", *kind, "none", folder], check=False).returncode:
        pytest.skip("no leave to mount a file system; run as root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_the_state_folder_is_full(small_disk: Path, tmp_path: Path) -> None:
    """Nobody fails for good; a start waits for room, is counted, and then goes on.

    An init container's too, of which nothing but our record tells.
    """
    settings = {"state_dir": small_disk}
    with NodeFixture(tmp_path, found_card(0), settings=settings) as host:
        pod = host.bind(
            "a",
            init=[container_json("once", 9, 3)],
            containers=[container_json("main", 4, 2)],
        )
        uid = pod["metadata"]["uid"]
        with suppress(OSError), (small_disk / "filler").open("wb", 0) as filler:
            while True:
                filler.write(b"x" * 4096)
        given = host.admit(pod)
        for container in given:
            with pytest.raises(CannotStartYetError, match="No space left on device"):
                host.devices.start(uid, container)
        assert refused(host, "PreStartContainer") == 2
        assert refused(host, "Allocate") == 0
        (small_disk / "filler").unlink()
        for container, units in (("once", 9), ("main", 4)):
            host.devices.start(uid, container)
            assert inside(given[container])["container"] == container
            assert inside(given[container])["cards"][0]["units"] == units
        host.end()
        host.start()
        assert host.serving.occupancy.has_allocation(uid)


def refused(host: NodeFixture, call: str) -> float:
    """How many of these calls ended in an error."""
    found = (
        host.registry.get_sample_value(
            "vcuda_plugin_refused_total", {"call": call, "resource": resource}
        )
        for resource in (C, M)
    )
    return sum(one or 0 for one in found)


def test_a_card_of_unknown_minor_number_is_denied(tmp_path: Path) -> None:
    """Its device node is not known: in words, before a container starts without it."""
    card = replace(found_card(0), minor=None)
    with NodeFixture(tmp_path, card, settings={"inject": "nodes"}) as host:
        assert "minor number of card" in host.refuse(host.bind("a", 4, 1))


def test_records_end_with_their_pod(host: NodeFixture) -> None:
    """And not with its name, under which a new pod lives on."""
    records = host.serving.reporter.records
    for card in (0, 1):
        host.run(host.bind("web-0", 10, 1, card=card))
        if card == 0:
            host.end_pod("web-0")
    uid = host.pod("web-0")["metadata"]["uid"]
    for path in (host.settings.state_dir / "containers").iterdir():
        os.utime(path, (1000, 1000))
    host.serving.reporter.catch_up()
    assert {one.uid for one in records.all()} == {uid}
    assert len(list((host.settings.state_dir / "containers").iterdir())) == 4
