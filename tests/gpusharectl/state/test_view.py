"""What namespaces hold, and how much of their quotas is used."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushare.domain.model import Amount, PodUID
from gpushare.kube import names
from gpushare.kube.resource_claims.allocated import ResourceClaimUser
from gpusharectl.output import encode
from gpusharectl.state.read import ClusterState
from gpusharectl.state.view import (
    ClaimUse,
    NamespaceView,
    Quota,
    build_overview,
    filter_namespace,
)
from tests.builders import (
    allocation_json,
    bound_json,
    card,
    claim_json,
    placement,
    pod_json,
    share,
)
from tests.gpusharectl.cluster_states import (
    CORE,
    SCENES,
    A,
    B,
    cluster_state,
    making_room,
    node_of,
    quota,
    unplaced,
    whole_card,
)
from tests.gpusharectl.golden import draw_screen


@pytest.mark.parametrize("name", [name for name in SCENES if name != "unplaced"])
def test_all_that_is_allotted_is_somebodys(name: str) -> None:
    """The namespaces' sums are the cards' sums, where each pod's card is known."""
    found = build_overview(SCENES[name]())
    cards = sum(view.allotted.units for view in found.cards)
    gone = sum(g.share.amount.units for node in found.nodes for g in node.gone)
    assert sum(one.allotted.units for one in found.namespaces) == cards + gone


def on_two_cards() -> ClusterState:
    plan = placement("two", shares=[share(A, 10, 5), share(B, 7, 2)], node="n")
    return cluster_state(
        [node_of("n", card(0, uuid=A), card(1, uuid=B))], [bound_json(plan)]
    )


@pytest.mark.parametrize(
    ("scene", "cores", "units"),
    [
        (unplaced, 1, 5),
        (whole_card, 100, 29),
        (making_room, 2, 50),
        (on_two_cards, 7, 17),
    ],
)
def test_what_a_namespace_holds(
    scene: Callable[[], ClusterState], cores: int, units: int
) -> None:
    """A pod of unknown card counts once, and a nominated pod not at all."""
    (found,) = build_overview(scene()).namespaces
    assert found.allotted == Amount(cores, units)


def test_what_is_no_whole_number_is_not_known() -> None:
    half = quota("x", hard={CORE: "0.5"}, used={CORE: "nonsense"})
    assert build_overview(replace(cluster_state(), quotas=(half,))).namespaces == (
        NamespaceView("x", Amount(), (Quota("gpu", names.CORE, None, None),)),
    )


def test_a_claim_is_shown_as_a_claim() -> None:
    """With its own mark, and not as a pod without object or of some priority."""
    allocation = allocation_json("gpu-0", units=8, node="n")
    claims = [claim_json("c", allocation, pods=["web"])]
    state = cluster_state([node_of("n", card(0, 29))], claims=claims)
    (view,) = build_overview(state).cards
    (share,) = view.pods
    assert (share.by_claim and share.by_claim.claim, str(share.pod)) == (
        "allocated",
        "default/c",
    )
    assert (view.allotted.units, view.free and view.free.units) == (8, 21)
    reserved = replace(state.placements, reserved=frozenset({share.pod.uid}))
    screens = {
        word: draw_screen(shown, wide=wide)
        for word, shown, wide in (
            ("allocated", state, False),
            ("reserved", replace(state, placements=reserved), True),
        )
    }
    assert "default/c 8 (claim, allocated for web)" in screens["allocated"]
    assert "claim, reserved for web" in screens["reserved"]
    assert "priority" not in screens["reserved"]
    own = draw_screen(filter_namespace(build_overview(state), "default"))
    assert "1 claim of default holds 8 units" in own
    data = encode(build_overview(state))
    (held,) = data["nodes"][0]["cards"][0]["pods"]
    assert held["claim"] == "allocated"
    assert held["used_by"] == [{"name": "web", "uid": "uid-web"}]


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        (None, "claim, allocated"),
        ([], "claim, allocated for no pod"),
        (["a", "b"], "claim, allocated for a, b"),
        (["a", "b", "c"], "claim, allocated for a, b and 1 more"),
    ],
)
def test_a_claim_names_its_pods(pods: list[str] | None, words: str) -> None:
    """Not known is not the same as none."""
    users = None
    if pods is not None:
        users = tuple(ResourceClaimUser(pod, PodUID(pod)) for pod in pods)
    assert str(ClaimUse("allocated", users)) == words


def test_what_a_claims_pods_say_is_said_of_it() -> None:
    """It waits if one of them waits, and leaves if all of them do."""
    bodies = [pod_json(name) for name in ("a", "b")]
    waiting = {"reason": "CreateContainerConfigError", "message": "no"}
    status = {"name": "main", "state": {"waiting": waiting}}
    bodies[1]["status"]["containerStatuses"] = [status]
    claims = [claim_json("c", allocation_json("gpu-0", node="n"), pods=["a", "b"])]
    plain = cluster_state([node_of("n", card(0, 29))], claims=claims)
    state = replace(
        plain, with_claims={PodUID(pod["metadata"]["uid"]): pod for pod in bodies}
    )
    share = build_overview(state).cards[0].pods[0]
    assert (share.leaving, share.waits.split(":")[0]) == (False, waiting["reason"])
    for pod, all_leave in zip(bodies, (False, True), strict=True):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert build_overview(state).cards[0].pods[0].leaving is all_leave


def test_pods_that_wait_with_claims_are_named() -> None:
    """What each lacks needs more than the ledger, so ``why`` says it."""
    pods = [pod_json(name) for name in ("b", "a")] + [pod_json("runs", node="n")]
    by_uid = {PodUID(pod["metadata"]["uid"]): pod for pod in pods}
    seen = build_overview(
        replace(cluster_state([node_of("n", card(0))]), with_claims=by_uid)
    )
    assert encode(seen)["pending_claims"] == ["default/a", "default/b"]
    screen = draw_screen(seen)
    assert "2 pods with ResourceClaims pending" in screen
    assert "default/a, default/b" in screen
    assert "gpusharectl why default/a" in screen
    assert filter_namespace(seen, "edge").claiming == ()


def test_requests_of_one_claim_on_one_card_are_one_part_of_it() -> None:
    """As a pod of several containers is."""
    allocation = allocation_json("gpu-0", units=8, cores=3, node="n")
    allocation["devices"]["results"] *= 2
    state = cluster_state(
        [node_of("n", card(0, 29))], claims=[claim_json("c", allocation)]
    )
    (view,) = build_overview(state).cards
    assert [share.amount for share in view.pods] == [Amount(6, 16)]
    assert view.allotted == Amount(6, 16)
