"""The page at /ui: what it is made of, and who gets it."""

import re
from datetime import UTC, datetime
from importlib import resources
from threading import Event
from typing import Any

import pytest
from werkzeug.test import Client

from extender.main import assemble_extender
from extender.scheduling.state import ExtenderState
from extender.server.ui import MOST_REASONS, ExtenderPage, page_state
from extender.settings import ExtenderSettings
from gpushare.domain.node import Node
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.snapshot import write_snapshot
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.codec import read_pod_record
from gpushare.kube.reflector import Readiness
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import (
    bound_json,
    cards,
    event,
    node,
    node_json,
    placement,
    pod_json,
    request,
)
from tests.extender.extender_fixture import Clock
from tests.gpushare.kube.test_reflector import make_reflector
from tests.gpushare.server.asgi_client import as_wsgi

HTML = resources.files("extender.server").joinpath("page", "index.html").read_text()
INNER = "http://127.0.0.1:39999"


def seen(*nodes: Node, pods: tuple[Json, ...] = ()) -> dict[str, Any]:
    return page_state(nodes, [read_pod_record(pod) for pod in pods], PolicyChoice())


def test_it_is_the_snapshot_with_more() -> None:
    pages = [node(*cards(29, 16), holds=[placement("a", 0, 20)])]
    shown = seen(*pages)
    plain = write_snapshot(pages, (), PolicyChoice())
    assert {key: shown[key] for key in plain} == plain
    assert shown["unit_mib"] == 256


def test_who_waits_is_told_why_in_inspects_words() -> None:
    """The first in line stands first; whoever asks the same gets the same answer."""
    pages = node(*cards(29, 16), holds=[placement("a", 0, 20)])
    late = pod_json("late", units=17, cores=1)
    first = pod_json("first", units=17, cores=1, priority=9)
    small = pod_json("small", units=4)
    odd = pod_json("zodd", cores=150)
    shown = seen(pages, pods=(late, small, odd, first))["pending"]
    why = "no card has 17 units free; the most is 16, on n card 1"
    room = "there is room on n; see the pod's events for kube-scheduler's reason"
    keys = ("name", "asks", "because", "room")
    assert [tuple(pod[key] for key in keys) for pod in shown[:3]] == [
        ("first", "17 units (4.25 GiB) and 1 core", why, False),
        ("late", "17 units (4.25 GiB) and 1 core", why, False),
        ("small", "4 units (1 GiB)", room, True),
    ]
    assert shown[3]["because"].startswith("Invalid vcuda request: 150 cores")
    assert (shown[3]["asks"], shown[3]["room"]) == ("n/a", False)


def test_room_that_is_kept_for_a_pod_is_room_for_it_alone() -> None:
    """Though another asks the same, at the same rank."""
    page = node(nominated=[placement("kept", 0, 20)])
    pods = (pod_json("kept", units=20), pod_json("other", units=20))
    room = {pod["name"]: pod["room"] for pod in seen(page, pods=pods)["pending"]}
    assert room == {"kept": True, "other": False}


def test_a_node_that_a_pod_may_not_use_is_no_room_for_it() -> None:
    """Another that asks for the same and may use it has room there."""
    known = ExtenderState(wait_s=0, pending_for_s=5, page=True)
    tainted = node_json("n", *cards(29))
    tainted["spec"] = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    known.nodes.apply(event("ADDED", tainted))
    tolerant = pod_json("tolerant", units=4)
    tolerant["spec"]["tolerations"] = [{"operator": "Exists"}]
    for pod in (tolerant, pod_json("other", units=4)):
        known.pods.apply(event("ADDED", pod))
    told = ExtenderPage(known, Readiness((), 60)).state()["pending"]
    assert {pod["name"]: pod["room"] for pod in told} == {
        "tolerant": True,
        "other": False,
    }
    because = {pod["name"]: pod["because"] for pod in told}["other"]
    assert (
        "it may use no node with cards: n (it does not tolerate the taint team:N"
        in because
    )
    known.nodes.apply(event("DELETED", tainted))
    assert known.nodes.properties == {}


def test_of_very_many_different_requests_some_have_no_reason() -> None:
    count = MOST_REASONS + 2
    pods = [pod_json(f"p{size:03}", units=30 + size) for size in range(count)]
    shown = seen(node(), pods=tuple(pods))["pending"]
    assert len(shown) == count
    assert [pod["because"] is None for pod in shown[-3:]] == [False, True, True]
    assert shown[-1]["room"] is None
    assert shown[-1]["asks"].startswith("63 units")


def test_a_pod_on_the_books_waits_no_more() -> None:
    page = node(holds=[placement("soon", 0, 4)])
    assert seen(page, pods=(pod_json("soon", units=4),))["pending"] == []


def test_who_is_leaving_and_what_is_wrong() -> None:
    leaves = bound_json(placement("old", 0, 4), terminating=True)
    stays = bound_json(placement("new", 0, 4))
    shown = seen(node(unplaced=[request("lost", 4)]), pods=(leaves, stays))
    assert shown["leaving"] == ["uid-old"]
    known = ExtenderState(wait_s=0, pending_for_s=5)
    broken = node_json("odd", annotations={"baidu.com/vcuda-cards": "{"})
    known.nodes.apply(event("ADDED", broken))
    clock = Clock()
    heard = make_reflector(clock, listed=True)
    clock.now = 0.123
    never = make_reflector(clock, listed=False)
    told = ExtenderPage(
        known, Readiness((("nodes", heard), ("pods", never)), 60)
    ).state()
    assert told["not_ready"] == ["pods have not been listed yet"]
    assert told["broken"].keys() == {"odd"}
    assert told["isolation"] == {}
    assert told["heard_s"] == {"nodes": 0.1}
    assert datetime.fromisoformat(told["at"]).tzinfo == UTC


def test_each_nodes_tier() -> None:
    """Empty where the device plugin does not say it, and gone with the cards."""
    known = ExtenderState(wait_s=0, pending_for_s=5, page=True)
    shared = cards(29)
    notes = {names.CARDS: encode_cards(shared, "driver")}
    known.nodes.apply(event("ADDED", node_json("a", annotations=notes)))
    known.nodes.apply(event("ADDED", node_json("b", *shared)))
    page = ExtenderPage(known, Readiness((), 60))
    assert page.state()["isolation"] == {"a": "driver", "b": ""}
    known.nodes.apply(event("MODIFIED", node_json("a")))
    known.nodes.apply(event("DELETED", node_json("b")))
    assert page.state()["isolation"] == {}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_page_and_its_state_are_served_if_wanted(*, wanted: bool) -> None:
    """With headers that let nothing run but the page's own."""
    stop = Event()
    client = Client(
        as_wsgi(assemble_extender(ExtenderSettings(ui=wanted), Embedded(), stop).inner)
    )
    stop.set()
    page, told, root = (
        client.get(path, base_url=INNER) for path in ("/ui", "/ui/state", "/")
    )
    if not wanted:
        assert [one.status_code for one in (page, told, root)] == [404, 404, 404]
        return
    assert (root.status_code, root.headers["Location"]) == (302, "/ui")
    assert (page.status_code, page.text) == (200, HTML)
    assert page.content_type == "text/html; charset=utf-8"
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert told.json is not None
    assert told.json["v"] == 1
    assert told.content_type == "application/json"
    assert told.headers["Cache-Control"] == "no-store"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No address but its own data, and no way to turn text into markup."""
    addresses = re.findall(r"[a-z]+:?//[^\s\"'`]+", HTML)
    own = {address.split("'")[0] for address in addresses}
    assert own <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval)\b", HTML)
    assert not re.search(r"\s(style|on[a-z]+)=\"", HTML)
    assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*\bsrc=", HTML) == []
