"""A claim's last check, and what its containers get."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest

from deviceplugin.dra.prepare import ResourceClaimPreparer
from gpushare.cards.source import FoundCard, FoundCards
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kubelet.pods import ListedDevices
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import allocation_json, container_json
from tests.deviceplugin.dra.dra_fixture import (
    DraNode,
    charges,
    device_of,
    edits_of,
    env_of,
    host_path,
    result,
)
from tests.deviceplugin.node_fixture import NODE, UUIDS, found_card, prefers
from tests.testbed.waiting import wait_until

SHARE = "vcuda.baidu.com/share"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DraNode]:
    """Two cards of 29 units."""
    with DraNode(tmp_path, found_card(0), found_card(1)) as made:
        yield made


def specify(node: DraNode, *cards: int, **edits: Any) -> None:
    node.cdi.mkdir(exist_ok=True)
    listed = [{"name": UUIDS[card], "containerEdits": edits} for card in cards]
    text = json.dumps({"kind": "nvidia.com/gpu", "devices": listed})
    (node.cdi / "nvidia.json").write_text(text)


def test_what_kubelet_is_told(node: DraNode) -> None:
    """The card by NVIDIA's CDI name, and ours, which has the share."""
    specify(node, 0, 1)
    claim = node.claim("c", 1, units=20, cores=30)
    uid = claim["metadata"]["uid"]
    [device] = node.prepare_one(claim).devices
    assert list(device.request_names) == ["card"]
    assert (device.pool_name, device.device_name) == (NODE, device_of(1))
    assert list(device.cdi_device_ids) == [
        f"nvidia.com/gpu={UUIDS[1]}",
        f"{SHARE}={uid}-card",
    ]
    assert device.share_id == f"share-{device_of(1)}"


def test_a_specification_whose_files_are_gone_is_not_used(tmp_path: Path) -> None:
    """No container would start with it; the claim gets the card in the other way."""
    (tmp_path / "root/usr").mkdir(parents=True)
    settings = {"host_root": tmp_path / "root"}
    with DraNode(tmp_path, found_card(0), settings=settings) as node:
        for name, number in (("/usr/there", 2), ("/usr/gone", 1)):
            (tmp_path / "root/usr/there").touch()
            specify(node, 0, mounts=[{"hostPath": name, "containerPath": "/a"}])
            [device] = node.prepare_one(node.claim(name[5:], units=4)).devices
            assert len(device.cdi_device_ids) == number


def test_what_the_container_gets(node: DraNode) -> None:
    """The variables and the file of a classic pod."""
    specify(node, 0, 1)
    claim = node.claim("c", units=20, cores=30, users=("p",))
    node.prepare(claim)
    said = node.specification(claim)
    assert said["kind"] == SHARE
    assert env_of(said) == {
        "VCUDA_CARDS": UUIDS[0],
        "VCUDA_MEMORY_LIMIT_MIB": "5120",
        "VCUDA_CORES": "30",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    [mount] = edits_of(said)["mounts"]
    assert mount["options"][0] == "ro"
    folder = host_path(said, "/etc/vcuda")
    assert json.loads((folder / "allocation.json").read_text()) == {
        "v": 1,
        "pod": "default/p",
        "uid": "uid-p",
        "container": "",
        "cards": [{"uuid": UUIDS[0], "units": 20, "cores": 30, "memory_mib": 5120}],
        "isolation": "none",
        "claim": "default/c",
        "request": "card",
    }
    # Any user of the container can read it.
    assert (folder / "allocation.json").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in node.cdi.iterdir() if path.suffix != ".json"] == []


def test_a_claim_of_several_pods_names_none(node: DraNode) -> None:
    """All of them have the same file mounted."""
    claim = node.claim("c", users=("p", "q"))
    node.prepare(claim)
    path = host_path(node.specification(claim), "/etc/vcuda") / "allocation.json"
    said = json.loads(path.read_text())
    assert (said["pod"], said["uid"], said["claim"]) == ("", "", "default/c")


def test_without_nvidias_specification(tmp_path: Path) -> None:
    """The card's device nodes come with the share."""
    with DraNode(tmp_path, found_card(0), settings={"inject": "nodes"}) as node:
        claim = node.claim("c")
        [device] = node.prepare_one(claim).devices
        assert [cdi_id.split("=")[0] for cdi_id in device.cdi_device_ids] == [SHARE]
        nodes = edits_of(node.specification(claim))["deviceNodes"]
        assert "/dev/nvidia0" in {device_node["path"] for device_node in nodes}


def test_two_requests_of_one_claim(node: DraNode) -> None:
    """Each has its own device of ours; an alternative counts as its request."""
    results = [
        result(card, units=4, request=request)
        for card, request in ((0, "left"), (1, "right/small"))
    ]
    claim = node.claim_with("c", {"devices": {"results": results}})
    uid = claim["metadata"]["uid"]
    found = node.prepare_one(claim).devices
    assert [list(device.request_names) for device in found] == [["left"], ["right"]]
    assert found[1].cdi_device_ids == [f"{SHARE}={uid}-right"]
    said = node.specification(claim)
    cards = [env_of(said, number)["VCUDA_CARDS"] for number in (0, 1)]
    assert cards == [UUIDS[0], UUIDS[1]]


def test_one_request_of_two_cards(node: DraNode) -> None:
    """What brings both is told once, else it would be injected twice."""
    results = [result(card, units=29, cores=100) for card in (0, 1)]
    # A specification of one of them does not do.
    specify(node, 0)
    claim = node.claim_with("c", {"devices": {"results": results}})
    first, second = node.prepare_one(claim).devices
    assert len(first.cdi_device_ids) == 1
    assert not second.cdi_device_ids
    assert env_of(node.specification(claim))["VCUDA_CARDS"] == ",".join(UUIDS[:2])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"device": "gpu-unknown"}, "this node has no card gpu-unknown"),
        ({"node": "other"}, "pool other, and this is node n"),
        ({"units": 0}, "has 0 MiB of card"),
        ({"units": 30}, "has 29 units and 100 cores left, not 30 and 10"),
    ],
    ids=["no such card", "another node", "no memory", "too much"],
)
def test_refused(node: DraNode, how: dict[str, object], why: str) -> None:
    claim = node.claim("c", **how)  # type: ignore[arg-type]
    assert why in node.prepare_one(claim).error
    assert not list(node.cdi.glob("*share*"))


def two_results(units: int) -> list[Json]:
    """Two requests, ``left`` and ``right``, on one card."""
    return [result(0, units=units, request=request) for request in ("left", "right")]


def test_requests_on_one_card_need_room_together(node: DraNode) -> None:
    claim = node.claim_with("c", {"devices": {"results": two_results(units=15)}})
    assert "has 29 units and 100 cores left, not 30" in node.prepare_one(claim).error


def test_refused_claims(node: DraNode) -> None:
    """Each claim of a call has its own answer."""
    good, bare = node.claim("good"), node.claim_with("bare", None)
    other = {**good, "metadata": {**good["metadata"], "uid": "another"}}
    gone = {"metadata": {"namespace": "default", "name": "gone", "uid": "g"}}
    path = {**good, "metadata": {**good["metadata"], "uid": "../x"}}
    answers = node.prepare(good, bare, other, gone, path)
    said = {uid: answer.error for uid, answer in answers.items()}
    assert said.pop(good["metadata"]["uid"]) == ""
    assert "has no allocation by vcuda.baidu.com" in said[bare["metadata"]["uid"]]
    assert "is another one of this name" in said["another"]
    assert "cannot be read" in said["g"]
    assert "is not a claim's UID" in said["../x"]


def test_admin_access_is_refused(node: DraNode) -> None:
    """Also beside a part of a card: its container would start without a card."""
    allocation = allocation_json(device_of(0))
    looks = result(1, request="look")
    allocation["devices"]["results"].append(looks | {"adminAccess": True})
    claim = node.claim_with("c", allocation)
    said = node.prepare_one(claim).error
    assert "request look has adminAccess, which vcuda.baidu.com does not give" in said


def test_a_sick_card_is_refused_until_it_is_well(node: DraNode) -> None:
    node.cards.failures[UUIDS[0]] = "it does not answer"
    offer = node.serving.parts.offer
    wait_until(lambda: not offer.cards.all[0].healthy, "the card to be sick")
    claim = node.claim("c")
    assert "is sick: it does not answer" in node.prepare_one(claim).error
    del node.cards.failures[UUIDS[0]]
    wait_until(lambda: offer.cards.all[0].healthy, "the card to be well")
    assert not node.prepare_one(claim).error


def test_claims_wait_for_classic_pods(node: DraNode) -> None:
    """A classic pod that is only planned is charged too."""
    node.bind("classic", 20, 20)
    claim = node.claim("c", units=10)
    assert "has 9 units and 80 cores left, not 10" in node.prepare_one(claim).error
    node.end_pod("classic")
    wait_until(lambda: not node.prepare_one(claim).error, "room")


def test_claims_wait_for_claims(node: DraNode) -> None:
    """Whatever kube-scheduler thinks: two that do not fit never run together."""
    first, second = node.claim("first", units=20), node.claim("second", units=10)
    assert not node.prepare_one(first).error
    assert "has 9 units" in node.prepare_one(second).error
    assert node.unprepare(first) == {first["metadata"]["uid"]: ""}
    assert not node.prepare_one(second).error


def test_classic_pods_see_prepared_claims(node: DraNode) -> None:
    """A pod without a plan goes to the other card; one that kubelet put there waits."""
    node.prepare(node.claim("c", units=20))
    answer = node.run(node.bind("free", 10, 10, card=None))
    assert answer["main"].envs["VCUDA_CARDS"] == UUIDS[1]
    prefers(node, UUIDS[0])
    pod = node.bind("forced", 10, 10, card=None)
    node.admit(pod)
    node.waits(pod, "9 units")


def test_planned_pods_wait_for_prepared_claims(node: DraNode) -> None:
    """Who planned the pod may not have known of the claim."""
    claim = node.claim("c", units=20)
    node.prepare(claim)
    pod = node.bind("classic", 20, 10)
    node.admit(pod)
    uid = pod["metadata"]["uid"]
    with pytest.raises(CannotStartYetError, match="has 9 units"):
        node.devices.start(uid, "main")
    # One that waits keeps none of the others from starting, and every claim.
    node.run(node.bind("small", 9, 10))
    tiny = node.claim("tiny", units=1)
    assert "units" in node.prepare_one(tiny).error
    node.unprepare(claim)
    node.devices.start(uid, "main")
    node.end_pod("small")
    wait_until(lambda: not node.prepare_one(tiny).error, "room for it")
    late = node.bind("late", 9, 10)
    node.admit(late)
    node.waits(late, "has 8 units")


def test_parts_of_one_card_wait_together_for_claims(node: DraNode) -> None:
    """Each would have room beside the claim alone."""
    claim = node.claim("c", units=20)
    node.prepare(claim)
    apps = [container_json("x", 5, 60), container_json("y", 5, 40)]
    apart = {names.CONTAINERS: names.APART}
    pod = node.bind("apart", containers=apps, annotations=apart)
    node.admit(pod)
    uid = pod["metadata"]["uid"]
    with pytest.raises(CannotStartYetError, match="not 10 and 100"):
        node.devices.start(uid, "x")
    node.unprepare(claim)
    node.devices.start(uid, "x")


def test_the_same_answer_again(node: DraNode) -> None:
    """Also without the API server; the file of a running container is not touched."""
    claim = node.claim("c", units=20)
    first = node.prepare_one(claim)
    path = host_path(node.specification(claim), "/etc/vcuda") / "allocation.json"
    before = path.stat().st_ino
    assert node.prepare_one(claim) == first
    node.cut_off()
    assert node.prepare_one(claim) == first
    assert path.stat().st_ino == before


def test_a_claim_that_was_deleted_is_not_prepared_again(node: DraNode) -> None:
    """Only an API server that does not answer leaves it as it was."""
    claim = node.claim("c")
    assert not node.prepare_one(claim).error
    node.cluster.delete(Kind.CLAIMS, "default", "c")
    assert "claim default/c cannot be read" in node.prepare_one(claim).error


def test_one_claim_for_two_pods_at_once(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet asks for each of them; neither is refused beside the other."""
    claim, get, both = node.claim("c", units=20), node.cluster.get, Barrier(2)

    def get_at_once(*what: Any) -> Json:
        found = get(*what)
        both.wait(10)
        return found

    monkeypatch.setattr(node.cluster, "get", get_at_once)
    with ThreadPoolExecutor(2) as pods:
        answers = [pods.submit(node.prepare_one, claim) for _ in range(2)]
    first, second = (call.result() for call in answers)
    assert not first.error
    assert first == second


def test_a_claim_that_is_taken_back_meanwhile_is_not_prepared(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet that asked was killed; the next one takes back what it knows of.

    Nobody would take back what is written after that. A later call is a new one.
    """
    claim, get = node.claim("c", units=20), node.cluster.get

    def get_late(*what: Any) -> Json:
        monkeypatch.undo()
        node.unprepare(claim)
        found: Json = get(*what)
        return found

    monkeypatch.setattr(node.cluster, "get", get_late)
    assert "was just taken back" in node.prepare_one(claim).error
    assert charges(node) == set()
    assert not list(node.cdi.glob("*share*"))
    assert not node.prepare_one(claim).error


def test_kubelet_is_asked_once_for_all_claims_of_a_pod(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the answer about all of them, and may be slow to list its pods."""
    listed = Mock(return_value=ListedDevices({}))
    monkeypatch.setattr(ResourceClaimPreparer, "listed", listed)
    claims = [node.claim(f"c{number}", units=1) for number in range(3)]
    assert not any(answer.error for answer in node.prepare(*claims).values())
    assert listed.call_count == 1


def test_a_new_claim_of_the_same_name(node: DraNode) -> None:
    """Both are charged until kubelet has taken the earlier one back."""
    earlier = node.claim("c", units=20)
    node.prepare(earlier)
    node.cluster.delete(Kind.CLAIMS, "default", "c")
    later = node.claim("c", units=20)
    assert "9 units" in node.prepare_one(later).error
    node.unprepare(earlier)
    assert not node.prepare_one(later).error
    node.unprepare(earlier)
    assert env_of(node.specification(later))
    assert charges(node) == {later["metadata"]["uid"]}


def test_a_damaged_specification_is_written_anew(node: DraNode) -> None:
    """As after a loss of power; with it no container of the claim would start."""
    claim = node.claim("c")
    first = node.prepare_one(claim)
    said = node.specification(claim)
    path = node.cdi / f"vcuda.baidu.com-share_{claim['metadata']['uid']}.json"
    path.write_bytes(path.read_bytes()[:20] + b"\xff")
    assert node.prepare_one(claim) == first
    assert node.specification(claim) == said


def test_a_lost_specification_is_written_without_the_api_server(node: DraNode) -> None:
    """As after a reboot in an outage: kubelet starts the container by this answer."""
    claim = node.claim("c")
    first, said = node.prepare_one(claim), node.specification(claim)
    node.cut_off()
    for path in node.cdi.iterdir():
        path.unlink()
    assert node.prepare_one(claim) == first
    assert node.specification(claim) == said


def test_lost_files_are_written_anew(node: DraNode) -> None:
    """Else the runtime could not mount them, and no container could start again."""
    claim = node.claim("c", units=20)
    first = node.prepare_one(claim)
    folder = host_path(node.specification(claim), "/etc/vcuda")
    text = (folder / "allocation.json").read_text()
    rmtree(folder.parent)
    assert node.prepare_one(claim) == first
    assert (folder / "allocation.json").read_text() == text


def test_files_of_other_requests_are_left_alone(node: DraNode) -> None:
    """A container that runs has them mounted."""
    claim = node.claim_with("c", {"devices": {"results": two_results(units=4)}})
    node.prepare(claim)
    left = host_path(node.specification(claim), "/etc/vcuda")
    right = left.with_name("right") / "allocation.json"
    before = right.stat().st_ino
    rmtree(left)
    node.prepare(claim)
    assert (left / "allocation.json").exists()
    assert right.stat().st_ino == before


def test_the_device_node_of_now(tmp_path: Path) -> None:
    """After a reboot a card may have another one; its former may be another card's."""
    with DraNode(tmp_path, found_card(0), settings={"inject": "nodes"}) as node:
        claim = node.claim("c")
        node.prepare(claim)
        node.end()
        node.cards.found = FoundCards((replace(found_card(0), minor=3),))
        node.start()
        assert not node.prepare_one(claim).error
        nodes = edits_of(node.specification(claim))["deviceNodes"]
        assert "/dev/nvidia3" in {device_node["path"] for device_node in nodes}
        assert "/dev/nvidia0" not in {device_node["path"] for device_node in nodes}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((found_card(1),), "this node has no card gpu-aaaaaaaa"),
        ((found_card(0, units=10), found_card(1)), "has 10 units by now"),
    ],
    ids=["gone", "smaller"],
)
def test_a_card_that_has_changed_since(
    node: DraNode, found: tuple[FoundCard, ...], why: str
) -> None:
    """As a MIG instance that was made anew: no container starts without its share."""
    claim = node.claim("c", units=20)
    node.prepare(claim)
    node.end()
    node.cards.found = FoundCards(found)
    node.start()
    assert why in node.prepare_one(claim).error
    assert charges(node) == {claim["metadata"]["uid"]}


def test_another_allocation_of_the_same_claim(node: DraNode) -> None:
    """It was given up and allocated again, and kubelet did not hear of the former.

    What it had is not charged against what it has.
    """
    claim = node.claim("c", units=20)
    node.prepare(claim)
    allocation = allocation_json(device_of(0), units=25)
    allocation["devices"]["results"][0]["shareID"] = "another"
    status = {"status": {"allocation": allocation}}
    node.cluster.patch(Kind.CLAIMS, "default", "c", status, subresource="status")
    [device] = node.prepare_one(claim).devices
    assert device.share_id == "another"
    assert env_of(node.specification(claim))["VCUDA_MEMORY_LIMIT_MIB"] == "6400"


def test_unprepare_leaves_nothing(node: DraNode) -> None:
    """It may be asked twice, and of claims that nobody knows."""
    claim = node.claim("c")
    node.prepare(claim)
    unknown = {"metadata": {"namespace": "default", "name": "u", "uid": "unknown"}}
    uid = claim["metadata"]["uid"]
    for _ in range(2):
        assert node.unprepare(claim, unknown) == {uid: "", "unknown": ""}
    assert not list(node.cdi.glob("*share*"))
    assert not list((node.folder / "vcuda" / "claims").iterdir())
    assert charges(node) == set()


def test_a_restart_knows_the_claims(node: DraNode) -> None:
    """They are charged, unprepared when asked, and a reboot's lost files come back."""
    claim = node.claim("c", units=20)
    first = node.prepare_one(claim)
    node.end()
    for path in node.cdi.glob("*share*"):
        path.unlink()
    node.start()
    node.kubelet_finds()
    assert env_of(node.specification(claim))["VCUDA_MEMORY_LIMIT_MIB"] == "5120"
    assert charges(node) == {claim["metadata"]["uid"]}
    assert "9 units" in node.prepare_one(node.claim("d", units=10)).error
    assert node.prepare_one(claim) == first
    node.unprepare(claim)
    assert charges(node) == set()


def test_a_damaged_record_harms_no_other(node: DraNode) -> None:
    good, bad = node.claim("good"), node.claim("bad")
    node.prepare(good, bad)
    node.end()
    records = node.folder / "vcuda" / "claims"
    (records / f"{bad['metadata']['uid']}.json").write_text('{"v": 1')
    node.start()
    assert charges(node) == {good["metadata"]["uid"]}
    assert not node.unprepare(bad)[bad["metadata"]["uid"]]
    assert not list(node.cdi.glob(f"*{bad['metadata']['uid']}*"))


def test_files_that_cannot_be_written(node: DraNode) -> None:
    """The claim waits, charges nothing, and starts when they can be."""
    node.cdi.mkdir(exist_ok=True)
    claim = node.claim("c")
    name = f"vcuda.baidu.com-share_{claim['metadata']['uid']}.json"
    blocked = node.cdi / f".{name}.part"
    blocked.mkdir()
    assert "cannot be written" in node.prepare_one(claim).error
    assert charges(node) == set()
    blocked.rmdir()
    assert not node.prepare_one(claim).error
