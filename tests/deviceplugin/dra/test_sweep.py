"""Claims that are for nobody are forgotten; what running ones have lost comes back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread
from unittest.mock import Mock

import pytest

from deviceplugin import serve
from deviceplugin.dra import driver
from deviceplugin.dra.prepare import ResourceClaimRef
from deviceplugin.dra.prepared import PreparedResourceClaims
from deviceplugin.dra.sweep import Sweeper
from gpushare.cards.source import FoundCards
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kubelet.claim_records import PreparedResourceClaim
from tests.builders import allocation_json
from tests.deviceplugin.allocation.test_isolation import prepare as with_limits
from tests.deviceplugin.dra.dra_fixture import (
    DraNode,
    charges,
    device_of,
    env_of,
    host_path,
)
from tests.deviceplugin.node_fixture import found_card
from tests.testbed.waiting import wait_until

BEGAN, LATER = 1000.0, 1600.0
"""Ten minutes apart."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DraNode]:
    """A card of 29 units."""
    with DraNode(tmp_path, found_card(0)) as made:
        yield made


def uid(claim: Json) -> str:
    return str(claim["metadata"]["uid"])


def sweep(node: DraNode) -> None:
    for now in (BEGAN, LATER):
        node.serving.driver.sweeper.forget_gone(now)


def test_claims_that_are_gone_are_forgotten(node: DraNode) -> None:
    """As after ``kubeadm reset``: this kubelet knows none of before.

    Not at once: of a pod that was deleted by force, the containers may still run.
    """
    here, gone = node.claim("here"), node.claim("gone")
    node.prepare(here, gone)
    node.cluster.delete(Kind.CLAIMS, "default", "gone")
    for now in (BEGAN, LATER - 1):
        node.serving.driver.sweeper.forget_gone(now)
        assert charges(node) == {uid(here), uid(gone)}
    node.serving.driver.sweeper.forget_gone(LATER)
    assert charges(node) == {uid(here)}


def test_ten_minutes_begin_anew(node: DraNode) -> None:
    """When a claim is allocated here again, as it was prepared."""
    claim = node.claim("c")
    node.prepare(claim)
    held = claim["status"]["allocation"]
    for now, allocation in ((BEGAN, None), (BEGAN + 1, held), (LATER, None)):
        status = {"status": {"allocation": allocation}}
        node.cluster.patch(Kind.CLAIMS, "default", "c", status, subresource="status")
        node.serving.driver.sweeper.forget_gone(now)
    assert charges(node) == {uid(claim)}


@pytest.mark.parametrize(
    "allocation",
    [None, allocation_json(device_of(0), node="other")],
    ids=["nothing", "cards of another node"],
)
def test_a_claim_that_has_no_card_here_any_more(
    node: DraNode, allocation: Json | None
) -> None:
    """A claim may outlive its pods, and be given to others elsewhere."""
    claim = node.claim("c")
    node.prepare(claim)
    status = {"status": {"allocation": allocation}}
    node.cluster.patch(Kind.CLAIMS, "default", "c", status, subresource="status")
    sweep(node)
    assert charges(node) == set()


def test_the_claims_of_a_pod_are_not_asked_about(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes together would ask a lot; but of two of one name one may be gone."""
    node.pod_with("p", {"main": "c"})
    node.prepare(earlier := node.claim("c", units=4))
    node.tell_running("p")
    get = Mock(wraps=node.cluster.get)
    with monkeypatch.context() as patch:
        patch.setattr(node.cluster, "get", get)
        sweep(node)
        node.serving.driver.sweeper.has_adopted = False
        node.serving.driver.sweeper.adopt()
    assert not get.called
    node.cluster.delete(Kind.CLAIMS, "default", "c")
    node.prepare(later := node.claim("c", units=4))
    assert charges(node) == {uid(earlier), uid(later)}
    sweep(node)
    assert charges(node) == {uid(later)}


def test_a_claim_that_is_deleted_under_its_pod_stays(node: DraNode) -> None:
    """Whoever may edit claims may take off the finalizer and make another of the name.

    Each of the two pods may run with one of them.
    """
    for pod in ("p", "q"):
        node.pod_with(pod, {"main": "c"})
    node.prepare(earlier := node.claim("c", units=4))
    node.cluster.delete(Kind.CLAIMS, "default", "c")
    node.prepare(later := node.claim("c", units=4))
    sweep(node)
    assert charges(node) == {uid(earlier), uid(later)}


def test_lost_files_of_a_running_claim_come_back(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By themselves: kubelet asks for no claim whose pod runs. They are waited for."""
    claim = node.claim("c", units=20)
    node.prepare(claim)
    folder = host_path(node.specification(claim), "/etc/vcuda")
    node.end()
    monkeypatch.setattr(driver, "_SWEEP_S", 0.02)
    rmtree(folder.parent)
    rmtree(node.cdi)
    node.start()
    wait_until((folder / "allocation.json").exists, "the file")
    wait_until(lambda: any(node.cdi.glob("*share*")), "the specification")


def test_no_specification_comes_back_while_its_claim_is_taken_back(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay for ever."""
    claim = node.claim("c")
    node.prepare(claim)
    node.end()
    put_right, written = PreparedResourceClaims.put_right, Event()
    asked = ResourceClaimRef("default", "c", uid(claim))
    taking = Thread(target=lambda: node.serving.driver.plugin.preparer.unprepare(asked))

    def put_right_meanwhile(
        claims: PreparedResourceClaims, stored: PreparedResourceClaim
    ) -> None:
        if taking.ident is None:
            taking.start()
            # It waits for what happens here.
            taking.join(0.2)
        put_right(claims, stored)
        written.set()

    monkeypatch.setattr(PreparedResourceClaims, "put_right", put_right_meanwhile)
    node.start()
    wait_until(written.is_set, "the specification")
    taking.join(20)
    assert not list(node.cdi.glob("*share*"))


def lose_records(node: DraNode) -> None:
    """Restart the plugin without what it had written down."""
    node.end()
    rmtree(node.folder / "vcuda" / "claims")
    node.start()
    wait_until(lambda: node.serving.driver.sweeper.has_adopted, "the first look")


def running_pod(node: DraNode, claim: str, tier: str = "") -> str:
    """A pod that runs with a claim; return its UID."""
    made = node.pod_with("p", {"main": claim})
    if tier:
        node.cluster.annotate(Kind.PODS, "default", "p", {names.ISOLATION: tier})
    node.tell_running("p")
    return uid(made)


def test_a_running_claim_whose_record_was_lost(node: DraNode) -> None:
    """It holds its card still. One that does not run is prepared as usual."""
    claim = node.claim("c", units=20, users={"p": running_pod(node, "c")})
    waiting = {"waits": uid(node.pod_with("waits", {"main": "idle"}))}
    node.prepare(claim, node.claim("idle", units=1, users=waiting))
    lose_records(node)
    assert charges(node) == {uid(claim)}
    assert env_of(node.specification(claim))["VCUDA_MEMORY_LIMIT_MIB"] == "5120"
    assert "9 units" in node.prepare_one(node.claim("d", units=10)).error
    assert set(node.unprepare(claim).values()) == {""}
    assert charges(node) == set()


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once a sweep has ended."""
    done, forget_gone = Event(), Sweeper.forget_gone

    def tell(sweeper: Sweeper, now: float) -> None:
        forget_gone(sweeper, now)
        done.set()

    monkeypatch.setattr(Sweeper, "forget_gone", tell)
    return done


def no_cards(node: DraNode, *, late: bool) -> None:
    node.cards.found = FoundCards(() if late else (found_card(0),))


def no_api_server(node: DraNode, *, late: bool) -> None:
    node.line.cut = late


@pytest.mark.parametrize("lacks", [no_cards, no_api_server])
def test_a_lost_record_is_looked_for_once_all_is_known(
    node: DraNode,
    lacks: Callable[..., None],
    swept: Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver of the cards may load late, and the API server answer late."""
    monkeypatch.setattr(serve, "_SYNC_WITHIN_S", 0.05)
    claim = node.claim("c", users={"p": running_pod(node, "c")})
    node.prepare(claim)
    node.end()
    rmtree(node.folder / "vcuda" / "claims")
    swept.clear()
    lacks(node, late=True)
    node.is_found = False
    starting = Thread(target=node.start)
    starting.start()
    wait_until(swept.is_set, "a sweep that knows too little")
    lacks(node, late=False)
    starting.join(20)
    wait_until(lambda: node.serving.driver.sweeper.has_adopted, "the first look")
    assert charges(node) == {uid(claim)}


def test_its_limit_is_that_of_its_pod(tmp_path: Path) -> None:
    """By the pod's annotation, whatever the node's tier is now."""
    settings = with_limits(tmp_path)
    with DraNode(tmp_path, found_card(0), settings=settings) as node:
        node.cdi = tmp_path / "cdi"
        users = {"p": running_pod(node, "c", "driver")}
        claim = node.claim("c", units=10, users=users)
        node.prepare(claim)
        said = node.specification(claim)
        lose_records(node)
        assert node.specification(claim) == said
        path = host_path(said, "/etc/vcuda") / "allocation.json"
        assert json.loads(path.read_text())["hard_limit_mib"] == 10 * 256


def test_a_claim_of_others_is_not_taken_for_the_pods(node: DraNode) -> None:
    """Its name alone says nothing: it may have been made anew for another pod."""
    running_pod(node, "c")
    node.prepare(node.claim("c", units=20, users={"p": "uid-another"}))
    lose_records(node)
    assert charges(node) == set()


def test_what_kubelet_has_taken_back_is_not_taken_for_lost(node: DraNode) -> None:
    """The pod's status is late: it says that the container still runs."""
    claim = node.claim("c", users={"p": running_pod(node, "c")})
    node.prepare(claim)
    node.unprepare(claim)
    node.serving.driver.sweeper.has_adopted = False
    node.serving.driver.sweeper.adopt()
    assert charges(node) == set()
