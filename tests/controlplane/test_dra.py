"""What the real API server says of our ResourceSlices, and who may write them."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.advertised import Offer, OwnNode
from deviceplugin.dra.slices import (
    SICK,
    NotSharedError,
    SlicePublisher,
    build_slices,
    slice_devices,
    why_not_served,
)
from gpushare.domain.model import Card, CardUUID, NodeName
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Kind, ListPage
from gpushare.kubelet.node_pods import NodePods, PodResources
from tests.controlplane.gate import policies_in_force
from tests.controlplane.test_guard import PLUGIN, bound_token
from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.kubernetes import chosen, numbers
from tests.testbed.manifests import documents, rights
from tests.testbed.objects import post_node, sweep
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

SHARED_CLAIMS = pytest.mark.since("1.36", "claims that share a device")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CARD = Card(CardUUID("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"), 0, 94, model="P4")


def body(node: str, cards: list[Json] | None = None) -> Json:
    (made,) = build_slices(node, "uid", cards or slice_devices([CARD], {}), 1)
    return made


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Rest]:
    """Nodes ``here`` and ``there``, and no slice afterwards."""
    for name in ("here", "there"):
        post_node(plane.rest, name)
    yield plane.rest
    plane.rest.must("DELETE", SLICES)
    sweep(plane.rest)


def without_times(spec: Json) -> Json:
    """The API server adds to a taint when it was set."""
    cleared = [
        {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"}]}
        if (taint := next(iter(device.get("taints", ())), None))
        else device
        for device in spec["devices"]
    ]
    return {**spec, "devices": cleared}


@SHARED_CLAIMS
@pytest.mark.parametrize(
    ("card", "held"),
    [
        (CARD, (0, 0)),
        (CARD, (98, 93)),
        (CARD, (100, 94)),
        (CARD, (120, 95)),
        (replace(CARD, units=1), (0, 0)),
        (replace(CARD, healthy=False, parent="GPU-1"), (0, 2)),
        (replace(CARD, cordoned=True, model=""), (0, 0)),
        (replace(CARD, uuid=CardUUID("é" * 40), model="é" * 40), (0, 0)),
    ],
    ids=["free", "least", "full", "above", "one unit", "sick", "cordoned", "long"],
)
def test_every_card_is_accepted(nodes: Rest, card: Card, held: tuple[int, int]) -> None:
    """And kept as it was sent: nothing is dropped, and no quantity is written anew."""
    made = body("here", slice_devices([card], {card.uuid: held}))
    stored = nodes.must("POST", SLICES, made)
    assert without_times(stored["spec"]) == made["spec"]


@SHARED_CLAIMS
def test_as_many_cards_as_fit(nodes: Rest) -> None:
    """With taints, and so many slices of one pool."""
    cards = [
        replace(CARD, uuid=CardUUID(f"GPU-{number:04d}"), index=number, healthy=False)
        for number in range(130)
    ]
    for made in build_slices("here", "uid", slice_devices(cards, {}), 1):
        stored = nodes.must("POST", SLICES, made)
        taints = [
            taint for each in stored["spec"]["devices"] for taint in each["taints"]
        ]
        assert {taint["key"] for taint in taints} == {SICK}


@pytest.fixture
def guarded(nodes: Rest) -> Iterator[Rest]:
    """The policy stands."""
    with policies_in_force(nodes, documents("dra/slice-guard.yaml")):
        free = Rest(nodes.port, account(nodes))
        made = body("here")
        wait_until(
            lambda: free.request("POST", f"{SLICES}?dryRun=All", made)[0] >= 400,
            "the policy",
        )
        yield nodes


def account(admin: Rest) -> str:
    """The device plugin's account with the rights of the component; a free token."""
    steps = documents("dra-plugin/rights.yaml")[0]
    more = [step["value"] for step in cast("list[Json]", steps)]
    user = f"system:serviceaccount:kube-system:{PLUGIN}"
    grant(admin, user, [*rights(PLUGIN), *more])
    return service_account_token(admin, "kube-system", PLUGIN)


def plugin_on(admin: Rest, node: str) -> Rest:
    token = bound_token(admin, PLUGIN, node)
    account(admin)
    return Rest(admin.port, token)


@SHARED_CLAIMS
def test_own_slices_only(guarded: Rest) -> None:
    """By a token that names its node; an administrator is not held up."""
    here, there = (plugin_on(guarded, node) for node in ("here", "there"))
    made = here.must("POST", SLICES, body("here"))
    path = f"{SLICES}/{made['metadata']['name']}"
    foreign = {**body("here"), "metadata": {"name": "foreign"}}
    foreign["spec"] = {**foreign["spec"], "driver": "gpu.nvidia.com"}
    other_pool = {**body("here"), "metadata": {"name": "pool"}}
    other_pool["spec"] = {
        **other_pool["spec"],
        "pool": {**other_pool["spec"]["pool"], "name": "there"},
    }
    refusals = [
        there.post(SLICES, {**body("here"), "metadata": {"name": "x"}}),
        there.delete(path),
        there.request("PUT", path, made),
        here.post(SLICES, foreign),
        here.post(SLICES, other_pool),
        Rest(guarded.port, account(guarded)).post(SLICES, body("there")),
    ]
    for status, said in refusals:
        assert status in {403, 422}, said
        assert "the device plugin of vcuda writes" in said["message"]
    here.must("PUT", path, made)
    here.must("DELETE", path)
    guarded.must("POST", SLICES, body("there"))


def publisher(cluster: ApiServer) -> SlicePublisher:
    node, offer = OwnNode(cluster, NodeName("here")), Offer(0)
    there = {"metadata": {"name": "here", "uid": "uid"}}
    node.replace(iter([ListPage((there,), "1")]))
    offer.cards = type(offer.cards)([CARD])
    pods = NodePods(cluster, NodeName("here"))
    occupancy = Occupancy(node.name, pods, cast("PodResources", None))
    return SlicePublisher(node, offer, occupancy)


@pytest.fixture
def old(
    binaries: Binaries, tmp_path: Path
) -> Iterator[Callable[..., tuple[ControlPlane, ApiServer]]]:
    """Start a control plane whose API server has these flags."""
    running: list[Any] = []

    def start(*flags: str) -> tuple[ControlPlane, ApiServer]:
        plane = ControlPlane(binaries, tmp_path / "plane", apiserver_flags=flags)
        running.append(plane)
        plane.__enter__()
        path = plane.kubeconfig(plane.admin.token, "plugin")
        cluster = ApiServer.connect(str(path))
        running.append(cluster)
        return plane, cluster

    yield start
    for client in reversed(running):
        client.close() if isinstance(client, ApiServer) else client.__exit__()


@pytest.mark.since("1.34", "resource.k8s.io/v1")
def test_claims_may_not_share_a_device(
    old: Callable[..., tuple[ControlPlane, ApiServer]],
) -> None:
    """As before 1.36 by default. What was written is taken back: no claims share it.

    The driver asks before, so it writes only if this changes while it runs.
    """
    on = numbers(chosen(os.environ)) >= (1, 36)
    off = ["--feature-gates=DRAConsumableCapacity=false"] if on else []
    plane, cluster = old(*off)
    assert "DRAConsumableCapacity is off" in why_not_served(cluster, "here")
    with pytest.raises(NotSharedError, match="DRAConsumableCapacity is off"):
        publisher(cluster).publish()
    assert plane.rest.must("GET", SLICES)["items"] == []


def test_no_such_api(old: Callable[..., tuple[ControlPlane, ApiServer]]) -> None:
    """As before 1.34, where the API server does not know the name."""
    known = numbers(chosen(os.environ)) >= (1, 34)
    off = ["--runtime-config=resource.k8s.io/v1=false"] if known else []
    _, cluster = old(*off)
    assert "does not serve resource.k8s.io/v1" in why_not_served(cluster, "here")


@SHARED_CLAIMS
def test_published_and_changed(nodes: Rest, plane: ControlPlane) -> None:
    """Written once, and again after somebody has changed or deleted it."""
    cluster = ApiServer.connect(str(plane.kubeconfig(plane.admin.token, "dra")))
    try:
        assert why_not_served(cluster, "here") == ""
        ours = publisher(cluster)
        ours.publish()
        (first,) = cluster.list_page(Kind.SLICES, limit=9).items
        ours._disturbed.set()
        ours.publish()
        assert cluster.list_page(Kind.SLICES, limit=9).items == (first,)
        path = f"{SLICES}/{first['metadata']['name']}"
        nodes.must("PUT", path, {**first, "spec": {**first["spec"], "devices": []}})
        ours._disturbed.set()
        ours.publish()
        (second,) = cluster.list_page(Kind.SLICES, limit=9).items
        assert second["spec"]["devices"] == first["spec"]["devices"]
        assert second["spec"]["pool"]["generation"] == 2
        nodes.must("DELETE", path)
        ours._disturbed.set()
        ours.publish()
        assert len(cluster.list_page(Kind.SLICES, limit=9).items) == 1
    finally:
        cluster.close()
