"""ResourceClaims and classic pods on the same cards, by real kube-scheduler.

The slices are the test's own. Everything is added up from the API server's objects.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceplugin.dra.slices import slice_devices
from gpushare.addresses import find_free_address
from gpushare.domain.model import Amount, Card, CardUUID
from gpushare.kube.annotations import encode_cards
from gpushare.kube.facts import scheduler_says
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kube.resource_claims.templates import write_template
from gpusharectl.commands import main
from tests.controlplane.claims import (
    DRIVER,
    Claims,
    asked_about_claims,
    claims_settings,
    remove_claim,
    sweep_claims,
)
from tests.controlplane.world import beside, post_all
from tests.testbed.certificates import certificates
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.since("1.36", "claims that share a device"),
]
OURS = 'device.attributes["vcuda.baidu.com"]'
LONG = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition MIG 1g.24gb+gfx"
ODD = [
    Card(CardUUID("GPU-odd-0"), 0, 20),
    Card(CardUUID("MIG-odd-1"), 100, 20, model=LONG, parent="GPU-odd-1"),
]
EDGE = [
    Card(CardUUID("GPU-edge-0"), 0, 20, model="NVIDIA A10"),
    Card(CardUUID("GPU-edge-1"), 1, 20, model="Tesla P4"),
]
SELECTORS = {
    f'{OURS}.model == "Tesla P4"': EDGE[1].uuid,
    f'{OURS}.model.startsWith("NVIDIA A10")': EDGE[0].uuid,
    f'{OURS}.model == "{LONG[:64]}"': ODD[1].uuid,
    f'{OURS}.model == ""': ODD[0].uuid,
    f'{OURS}.parent == "GPU-odd-1"': ODD[1].uuid,
    f'{OURS}.parent == "" && {OURS}.index == 1': EDGE[1].uuid,
    f'{OURS}.uuid == "GPU-edge-0"': EDGE[0].uuid,
}
DOCS = Path(__file__).parents[2] / "docs" / "dra.md"
SHARE = "5d0ff1ab-8b6f-4d6e-9c9b-1f1d8f4a9d10"


@pytest.fixture(scope="module")
def shared_claims(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Claims]:
    tls_files = certificates(tmp_path_factory.mktemp("claims") / "tls")
    listen = find_free_address()
    with (
        beside(plane, "claims", **claims_settings(listen, tls_files)) as world,
        asked_about_claims(plane, listen.port, tls_files),
    ):
        yield Claims(world, listen.port, tls_files)


@pytest.fixture
def site(shared_claims: Claims, space: str) -> Iterator[Claims]:
    world = replace(shared_claims.world, namespace=space, nodes=set())
    yield replace(shared_claims, world=world)
    sweep_claims(world.rest)


def test_a_denial_is_the_event_of_the_pod(site: Claims) -> None:
    """Word for word; the claim stays as it was, and gets the room when it is free."""
    site.node("edge", 20)
    hog = site.world.post("hog", 11, 1)
    site.world.bound(hog)
    waits = site.post("waits", 20)
    sentence = "card GPU-edge-0 of node edge has 9 units left, not 20"
    event = wait_until(
        lambda: site.world.messages(waits),
        "denial in the pod's event",
        accept=lambda texts: any(sentence in text for text in texts),
    )
    assert 'admission webhook "claims.vcuda.baidu.com" denied' in " ".join(event)
    assert site.allocated("waits") == []
    assert_explained(site, waits, sentence)
    site.world.delete(hog)
    site.world.bound(waits)
    assert site.allocated("waits") == [("gpu-edge-0", 20)]


def assert_explained(site: Claims, waits: Json, sentence: str) -> None:
    """``why`` has the arbiter's words, and reads slices and the class as they are."""
    wait_until(
        lambda: scheduler_says(read_pod(site.rest, waits)),
        "condition of the pod",
        accept=lambda told: sentence in told,
    )
    plane = site.world.plane
    config = str(plane.kubeconfig(plane.admin.token, "why", insecure=False))
    pod = f"{site.world.namespace}/{waits['metadata']['name']}"
    words = ["why", "--kubeconfig", config, "-o", "json", pod]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 3, found.output
    answer = json.loads(found.stdout)
    (claim,) = answer["claims"]
    assert sentence in claim["refusals"]
    assert claim["room"] == []
    assert claim["not_judged"] == answer["not_judged"] == []
    assert sentence in answer["kube_scheduler"]


def test_a_claim_counts_for_classic_pods(site: Claims) -> None:
    """They are refused while it has the card, and placed when it ends."""
    site.node("edge", 20)
    first = site.post("first", 15)
    site.world.bound(first)
    second = site.world.post("second", 10, 1)
    assert "Insufficient baidu.com/vcuda-memory on one card" in (
        site.world.verdict(second).event
    )
    site.end(first)
    assert site.world.bound(second).cards == ("GPU-edge-0",)


def test_a_whole_card_is_one_that_nobody_uses(site: Claims) -> None:
    """Also where a pod has memory of the first card and no core.

    kube-scheduler would try it again and again, and never another one.
    """
    site.node("edge", 20, 20)
    uses = site.world.bound(site.world.post("uses", 4, 0))
    uuids = [CardUUID(f"GPU-edge-{index}") for index in (0, 1)]
    assert uses.cards == (uuids[0],)
    offered = [Card(uuid, index, 20) for index, uuid in enumerate(uuids)]
    site.put_slice("edge", slice_devices(offered, {uuids[0]: (0, 4)}))
    site.world.bound(site.post("whole", 4, 100))
    site.world.bound(site.post("part", 4, 99))
    assert site.allocated("whole") == [("gpu-edge-1", 4)]
    assert site.allocated("part") == [("gpu-edge-0", 4)]


def test_the_parts_of_a_template_are_of_one_card(site: Claims) -> None:
    """The containers of a pod share a card; one part alone would fit on the first."""
    site.node("edge", 10, 20)
    parts = [Amount(cores=20, units=8), Amount(cores=1, units=4)]
    body = write_template(parts)["spec"]
    body |= {"kind": "ResourceClaim", "metadata": {"name": "both"}}
    site.rest.must("POST", site.claims, body)
    both = site.world.pod("both")
    both["spec"]["resourceClaims"] = [{"name": "vcuda", "resourceClaimName": "both"}]
    main = both["spec"]["containers"][0]
    both["spec"]["containers"] = [
        {**main, "name": name, "resources": {"claims": [used(name)]}}
        for name in ("card-1", "card-2")
    ]
    (posted,) = post_all(site.world, [both])
    site.world.bound(posted)
    assert site.allocated("both") == [("gpu-edge-1", 8), ("gpu-edge-1", 4)]
    wait_until(
        site.in_the_ledger,
        "both parts in the ledger",
        accept=lambda found: found == {"gpu-edge-1": 12},
    )


def test_selectors_choose_among_cards_of_any_kind(site: Claims) -> None:
    """Those of the docs, too: no card ends the cycle of pods that another one fits.

    Cards are without a model, with a longer one than the API server takes, and parts.
    """
    site.world.raw_node("odd", 40, 2, encode_cards(ODD))
    site.world.raw_node("edge", 40, 2, encode_cards(EDGE))
    site.put_slice("odd", slice_devices(ODD, {}))
    site.put_slice("edge", slice_devices(EDGE, {}))
    text = DOCS.read_text()
    assert {*re.findall(r"`(device\.attributes.*?)`", text)} < SELECTORS.keys()
    posted = {
        selector: site.post(f"p{number}", 1, selector=selector)
        for number, selector in enumerate(SELECTORS)
    }
    chosen = {}
    for selector, a_pod in posted.items():
        site.world.bound(a_pod)
        ((chosen[selector], _),) = site.allocated(a_pod["metadata"]["name"])
    assert chosen == {key: name_device(uuid) for key, uuid in SELECTORS.items()}


def used(request: str) -> Json:
    return {"name": "vcuda", "request": request}


def test_an_extender_that_dies_loses_nothing(site: Claims) -> None:
    """What is allocated is read again; a reservation that was never written is free."""
    site.node("edge", 20)
    first = site.post("first", 8)
    meant = site.claim("meant", 12)
    meant["status"] = {"allocation": allocation("gpu-edge-0", 12)}
    wait_until(lambda: site.allocated("first"), "allocation")
    assert site.review(meant)["allowed"] is True
    assert site.in_the_ledger()["gpu-edge-0"] == 20
    site.world.extender.kill()
    assert_only_ours_wait(site)
    site.world.extender.start()
    assert site.in_the_ledger() == site.on_cards() == {"gpu-edge-0": 8}
    assert site.review(meant)["allowed"] is True
    meant["metadata"]["uid"] = "another"
    assert "has 0 units left, not 12" in site.review(meant)["status"]["message"]
    site.world.bound(first)


def assert_only_ours_wait(site: Claims) -> None:
    """Nobody is asked now, so no card of ours is given; other drivers go on."""

    def written(name: str, driver: str) -> tuple[int, Json]:
        claim = site.claim(name, 1)
        given = allocation("gpu-edge-0", 1)
        given["devices"]["results"][0] |= {"driver": driver, "shareID": SHARE}
        body = claim | {"status": {"allocation": given}}
        return site.rest.put(f"{site.claims}/{name}/status", body)

    status, said = written("ours", DRIVER)
    assert status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert 'failed calling webhook "claims.vcuda.baidu.com"' in said["message"]
    status, said = written("theirs", "gpu.example.com")
    assert status == HTTPStatus.OK, said
    remove_claim(site.rest, f"{site.claims}/theirs")


def allocation(name: str, units: int) -> Json:
    amounts = {"memory": f"{units * 256}Mi", "cores": "1"}
    result = {
        "request": "card",
        "driver": DRIVER,
        "pool": "edge",
        "device": name,
        "consumedCapacity": amounts,
    }
    return {"devices": {"results": [result]}}
