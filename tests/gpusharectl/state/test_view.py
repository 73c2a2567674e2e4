"""What inspect shows of each namespace: quota, used and allotted."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

from gpushare.domain.model import Amount
from gpushare.kube import names
from gpusharectl.state.read import ClusterState
from gpusharectl.state.render import draw
from gpusharectl.state.serialize import overview_data
from gpusharectl.state.view import NamespaceView, Quota, overview
from tests.builders import bound_json, card, placement, share
from tests.gpusharectl.cluster_states import (
    CORE,
    SCENES,
    A,
    B,
    aged,
    bitfusion,
    cluster_state,
    held,
    in_namespace,
    making_room,
    many,
    node_of,
    quota,
    tenants,
    unplaced,
    unread,
    whole_card,
)
from tests.gpusharectl.golden import assert_as_kept, drawn

Scene = Callable[[], ClusterState]


def seen(found: ClusterState) -> dict[str, NamespaceView]:
    return {one.name: one for one in overview(found).namespaces}


def of(view: NamespaceView) -> dict[tuple[str, str], tuple[int | None, int | None]]:
    assert view.quotas is not None
    return {(one.name, one.resource): (one.used, one.hard) for one in view.quotas}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("scene", [tenants, bitfusion, unread, many])
def test_each_state_has_its_screen(scene: Scene, wide: bool) -> None:
    """At 80 columns without colour all is there; a wide one names every quota."""
    found = drawn(partial(draw, seen=overview(scene()), wide=wide))
    if not wide:
        assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"{'wide' if wide else 'inspect'}-quotas-{scene.__name__}", found)


def test_what_each_namespace_has() -> None:
    """Those with a quota on cards or with anything of them, and no others."""
    found = seen(tenants())
    assert list(found) == ["default", "edge", "fresh", "idle", "research"]
    assert found["edge"].allotted == Amount(cores=50, units=29)
    assert of(found["edge"]) == {("gpu", names.CORE): (100, 100)}
    assert found["research"].allotted == Amount(cores=40, units=44)
    assert of(found["research"]) == {
        ("gpu", names.MEMORY): (44, 40),
        ("gpu", names.CORE): (40, 200),
        ("night", names.CORE): (40, 60),
    }
    assert of(found["idle"]) == {("gpu", names.BITFUSION_GPU): (0, 100)}
    assert found["idle"].allotted == Amount()
    assert found["default"].quotas == ()


def test_what_nobody_has_counted_yet_is_not_known() -> None:
    """A quota that is new has no status; nor is half a core a number of cores."""
    assert of(seen(tenants())["fresh"]) == {("gpu", names.CORE): (None, 1000)}
    half = quota("x", hard={CORE: "0.5"}, used={CORE: "nonsense"})
    found = seen(replace(cluster_state(), quotas=(half,)))
    assert of(found["x"]) == {("gpu", names.CORE): (None, None)}


@pytest.mark.parametrize("name", SCENES)
def test_all_that_is_allotted_is_somebodys(name: str) -> None:
    """The namespaces' sums are the cards' sums, where each pod's card is known."""
    found = overview(SCENES[name]())
    if name == "unplaced":
        return
    cards = sum(view.charged.units for view in found.cards)
    gone = sum(one.amount.units for node in found.nodes for _, one in node.gone)
    assert sum(one.allotted.units for one in found.namespaces) == cards + gone


def test_a_pod_of_unknown_card_counts_once() -> None:
    """Though it is charged on each card of its node."""
    assert seen(unplaced())["default"].allotted == Amount(cores=1, units=5)


def test_a_whole_card_counts_all_that_it_has() -> None:
    """A quota counts what was asked: no units there."""
    assert seen(whole_card())["default"].allotted == Amount(cores=100, units=29)


def test_room_that_is_kept_is_not_allotted() -> None:
    """It is nobody's yet; who leaves has its share until it is gone."""
    assert seen(making_room())["default"].allotted == Amount(cores=2, units=50)


def test_a_pod_on_several_cards() -> None:
    """All its shares are its namespace's."""
    plan = placement("two", shares=[share(A, 10, 5), share(B, 7, 2)], node="n")
    pod = in_namespace(aged(bound_json(plan))[0], "edge")
    nodes = [node_of("n", card(0, uuid=A), card(1, uuid=B))]
    assert seen(cluster_state(nodes, [pod]))["edge"].allotted == Amount(
        cores=7, units=17
    )


def test_one_node_alone_has_no_namespaces() -> None:
    """A quota is the whole cluster's; as data they are there all the same."""
    found = overview(tenants(), "n")
    assert "namespace" not in drawn(partial(draw, seen=found, only="n"))
    assert len(overview_data(found)["namespaces"]) == 5


def test_over_a_quota_is_yellow() -> None:
    """All of it used is still within it."""
    console = Console(
        width=80, highlight=False, force_terminal=True, color_system="standard"
    )
    with console.capture() as capture:
        draw(console, overview(tenants()))
    yellow = re.findall(r"\x1b\[33m *(\d+/\d+)\x1b", capture.get())
    assert yellow == ["44/40"]


def test_in_numbers() -> None:
    """All quotas, null where nobody knows; the promise is held by another test."""
    data = overview_data(overview(tenants()))["namespaces"]
    research = next(one for one in data if one["name"] == "research")
    assert research["allotted"] == {"cores": 40, "units": 44, "memory_mib": 11264}
    assert research["quotas"][0] == {
        "name": "gpu",
        "resource": names.MEMORY,
        "hard": 40,
        "used": 44,
    }
    assert len(research["quotas"]) == 3
    fresh = next(one for one in data if one["name"] == "fresh")
    assert fresh["quotas"][0]["used"] is None
    blind = overview_data(overview(unread()))
    assert [one["quotas"] for one in blind["namespaces"]] == [None] * 3


def test_the_tightest_of_several_is_shown() -> None:
    """What has least left decides; one that nobody knows goes behind all others."""
    pods = [in_namespace(held("a", A, 1, 1, node="n"), "x")]
    bounds = [("one", "100", "40"), ("two", "50", "40"), ("three", "5", None)]
    quotas = [
        quota("x", name, hard={CORE: hard}, used=None if used is None else {CORE: used})
        for name, hard, used in bounds
    ]
    nodes = [node_of("n", card(0, uuid=A))]
    found = overview(replace(cluster_state(nodes, pods), quotas=tuple(quotas)))
    assert found.namespaces[0].quotas == (
        Quota("one", names.CORE, 100, 40),
        Quota("two", names.CORE, 50, 40),
        Quota("three", names.CORE, 5, None),
    )
    text = drawn(partial(draw, seen=found))
    assert "40/50\n" in text
    assert "40/100" not in text


def test_a_quota_on_what_no_node_offers_is_said() -> None:
    """Once for each namespace, with the command that moves it; not where one does."""
    about = [
        one for one in overview(tenants()).troubles if "counts nothing" in one.what
    ]
    assert [(one.about, one.do) for one in about] == [
        ("idle", "gpusharectl migrate-quota -n idle")
    ]
    assert overview(bitfusion()).troubles == ()
