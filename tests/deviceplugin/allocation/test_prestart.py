"""The last look before a container starts, and what is written of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest.mock import Mock

import pytest

from deviceplugin.allocation.device_chooser import (
    Assignment,
    DeniedError,
    DeviceQuestion,
)
from deviceplugin.allocation.prestart import NotYetError
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import Card, Placement, PodRequest
from gpushare.domain.placement import share_whole_cards
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.node_filters import (
    NodeProperties,
    find_bar,
    read_constraints,
    read_properties,
)
from gpushare.kubelet.node_pods import KubeletSilentError
from gpushare.kubelet.pods import read_node_pod
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import AT, container_json, pod_json
from tests.deviceplugin.allocation.test_isolation import prepare
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    C,
    M,
    NodeFixture,
    asks_first,
    because,
    found_card,
    ids_of,
    inside,
    prefers,
    visible,
)
from tests.testbed.waiting import wait_until


def raising(error: Exception) -> Mock:
    return Mock(side_effect=error)


def start(node: NodeFixture, pod: Json, container: str = "main") -> None:
    node.devices.start(pod["metadata"]["uid"], container)


def test_devices_that_nobody_holds(node: NodeFixture) -> None:
    with pytest.raises(NotYetError, match="not known which container holds"):
        node.start_container(M, ["aaaaaaaa-m0007"])


def test_kubelet_does_not_say_whose_they_are(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = node.bind("a", 4, 1)
    node.admit(pod)
    resources = node.serving.parts.prestart.resources
    with monkeypatch.context() as silent:
        silent.setattr(resources, "list", raising(KubeletSilentError("no answer")))
        silent.setattr(resources, "get", lambda *_: None)
        with pytest.raises(NotYetError, match="which container holds them: no answer"):
            node.start_container(M, ids_of_card(0, 4))
    start(node, pod)


def ids_of_card(index: int, count: int) -> list[str]:
    return [f"{UUIDS[index][4:12]}-m{number:04d}" for number in range(count)]


def test_an_older_kubelet_lists_all(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 1.34 it cannot be asked of one pod."""
    pod = node.bind("a", 4, 1, card=1)
    monkeypatch.setattr(node.serving.parts.prestart.resources, "get", lambda *_: None)
    assert inside(node.run(pod)["main"])["cards"][0]["uuid"] == UUIDS[1]


def test_a_restarted_container_is_looked_at_again(node: NodeFixture) -> None:
    once, main = container_json("once", 6, 2), container_json("main", 4, 1)
    pod = node.bind("a", init=[once], containers=[main])
    given = node.run(pod)
    for container, units in (("once", 6), ("main", 4), ("once", 6)):
        start(node, pod, container)
        assert inside(given[container])["container"] == container
        assert inside(given[container])["cards"][0]["units"] == units


def test_a_swap_that_cannot_be_written_waits(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extender must know of it before the card is used."""
    pod = node.bind("a", 4, 1, card=0)
    prefers(node, UUIDS[1])
    node.admit(pod)
    with monkeypatch.context() as away:
        away.setattr(node.cluster, "annotate", raising(Unavailable("no answer")))
        with pytest.raises(CannotStartYetError, match="could not be reported: no ans"):
            start(node, pod)
    start(node, pod)
    assert node.actual("a") == (UUIDS[1],)


def test_what_was_missed_is_caught_up_with(node: NodeFixture) -> None:
    node.run(node.bind("a", 4, 1, card=None))
    assert node.actual("a") is not None
    node.cluster.annotate(Kind.PODS, "default", "a", {names.ACTUAL: None})
    # The watch tells in order: once this one is seen, so is what came before.
    node.bind("later", 1, 1)
    node.serving.reporter.catch_up()
    assert node.actual("a") is not None


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[NodeFixture]:
    """A node of tier driver."""
    with NodeFixture(tmp_path, found_card(0), settings=prepare(tmp_path)) as made:
        yield made


def tier(node: NodeFixture, after: str) -> str | None:
    """The tier that pod a names after two looks; ``after`` is a new pod's name."""
    node.serving.reporter.catch_up()
    # The watch tells in order: once this one is seen, so is what came before.
    node.bind(after, 1, 1)
    node.serving.reporter.catch_up()
    found: str | None = node.pod("a")["metadata"]["annotations"].get(names.ISOLATION)
    return found


def test_a_pod_names_the_tier_with_which_it_has_started(
    limited: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; again if it was removed."""
    annotate = Mock(wraps=limited.cluster.annotate)
    monkeypatch.setattr(limited.cluster, "annotate", annotate)
    pod = limited.bind("a", 4, 1)
    limited.admit(pod)
    assert tier(limited, "b") is None
    start(limited, pod)
    annotate.reset_mock()
    assert tier(limited, "c") == "driver"
    assert annotate.call_count == 1
    limited.cluster.annotate(Kind.PODS, "default", "a", {names.ISOLATION: None})
    assert tier(limited, "d") == "driver"


def test_pods_choose_a_node_by_its_tier(limited: NodeFixture) -> None:
    """By kube-scheduler's rules: the plugin labels its node with what it does."""

    def properties() -> NodeProperties:
        return read_properties(limited.cluster.get(Kind.NODES, "", NODE))

    wait_until(lambda: names.ISOLATION in properties().labels, "the label")
    for wanted, fits in (("driver", True), ("preload", False)):
        pod = pod_json("a", units=4, cores=1)
        pod["spec"]["nodeSelector"] = {names.ISOLATION: wanted}
        assert (find_bar(properties(), read_constraints(pod)) is None) is fits


def test_a_pod_without_a_limit_names_no_tier(node: NodeFixture) -> None:
    node.run(node.bind("a", 4, 1))
    assert tier(node, "b") is None


@pytest.mark.parametrize(
    ("error", "tries"), [(Forbidden("no"), 1), (Unavailable("no"), 4)]
)
def test_a_tier_that_cannot_be_written_keeps_nobody(
    limited: NodeFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    tries: int,
) -> None:
    """A guard of an earlier version refuses it for good; other errors may pass."""
    monkeypatch.setattr(limited.cluster, "annotate", raising(error))
    limited.run(limited.bind("a", 4, 1))
    assert tier(limited, "b") is tier(limited, "c") is None
    assert len(because(caplog, "isolation tier not written")) == tries


def test_what_has_ended_is_forgotten(node: NodeFixture) -> None:
    node.run(node.bind("a", 4, 1))
    uid = node.pod("a")["metadata"]["uid"]
    assert node.serving.reporter.occupancy.has_allocation(uid)
    node.end_pod("a")
    node.serving.reporter.pods.drop(uid)
    node.serving.reporter.catch_up()
    assert not node.serving.reporter.occupancy.has_allocation(uid)
    assert any(one.uid == uid for one in node.serving.reporter.records.all())


def sweep(node: NodeFixture, after_s: float = 0) -> set[str]:
    """Remove what has ended; return the UIDs of the records that stay."""
    replace(node.serving.reporter, keep_ended_s=after_s).catch_up()
    return {one.uid for one in node.serving.parts.records.all()}


def comes(node: NodeFixture, name: str) -> str:
    """Run a pod with an init container that ends; return its UID."""
    once, main = container_json("once", 8, 3), container_json("main", 4, 1)
    pod = node.bind(name, init=[once], containers=[main])
    node.run(pod)
    return str(pod["metadata"]["uid"])


def is_forgotten(node: NodeFixture, name: str) -> None:
    """Delete a pod by force: kubelet does not know of it yet."""
    node.cluster.delete(Kind.PODS, "default", name, grace_period_s=0)
    find = node.serving.reporter.pods.find
    wait_until(lambda: find(("default", name)) is None, f"{name} to be gone")


def test_earlier_pods_of_a_name_are_swept(node: NodeFixture) -> None:
    """A StatefulSet's pod comes again with the same name, and mostly its devices."""
    for number in range(40):
        node.run(node.bind("web-0", 4, 1, card=number % 2))
        node.end_pod("web-0")
    uid = comes(node, "web-0")
    assert len(sweep(node, after_s=600)) == 41
    node.end()
    node.start()
    node.wait_seen("web-0")
    assert sweep(node) == {uid}
    assert len(list((node.settings.state_dir / "containers").glob("*.json"))) == 4


def test_a_pod_that_ends_keeps_its_files(node: NodeFixture) -> None:
    """Deleted by force, it runs on for a while: kubelet lists it, and then does not."""
    first = comes(node, "web-0")
    is_forgotten(node, "web-0")
    assert sweep(node) == {first}
    node.devices.release(first)
    second = comes(node, "web-0")
    assert sweep(node, after_s=600) == {first, second}
    assert sweep(node) == {second}


def test_a_static_pod_keeps_its_files(node: NodeFixture) -> None:
    """They are of no UID, or of an earlier mirror's: kubelet's own UID is another."""
    once, main = container_json("once", 8, 3), container_json("main", 4, 1)
    how: dict[str, Any] = {"init": [once], "containers": [main]}
    node.run(pod_json("s-n", uid="hash", node="n", **how))
    assert sweep(node) == {""}
    mirror = node.bind("s-n", card=None, **how)
    assert sweep(node) == {""}
    for container in ("once", "main"):
        node.devices.start("hash", container)
    for _ in range(2):
        assert sweep(node) == {mirror["metadata"]["uid"]}
        is_forgotten(node, "s-n")
        assert sweep(node) == {mirror["metadata"]["uid"]}
        node.bind("s-n", card=None, **how)
    assert len(node.serving.parts.records.all()) == 4


def test_the_loop_outlives_a_silent_kubelet(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reporter = node.serving.reporter
    monkeypatch.setattr(reporter.resources, "list", raising(KubeletSilentError("no")))
    reporter.run(Mock(wait=Mock(side_effect=[False, False, True])), 0)
    told = [one for one in caplog.records if one.thread == get_ident()]
    assert [one.message for one in told] == ["reporting later"] * 2


def test_swap_without_room(node: NodeFixture) -> None:
    node.bind("b", 20, 1, card=1)
    pod = node.bind("a", 20, 1, card=0)
    prefers(node, UUIDS[1])
    node.admit(pod)
    uid = pod["metadata"]["uid"]
    with pytest.raises(CannotStartYetError, match="has 9 units and 99 cores left"):
        node.devices.start(uid, "main")
    wait_until(node.events, "an event")
    assert {(e[0], e[1]) for e in node.events()} == {("a", "VcudaWaiting")}
    node.end_pod("b")
    wait_until(
        lambda: node.serving.reporter.pods.find(("default", "b")) is None,
        "b to be gone",
    )
    node.devices.start(uid, "main")
    assert node.actual("a") is not None


FORBIDDEN = {names.UUIDS: UUIDS[0]}


@pytest.mark.parametrize("annotations", [{}, FORBIDDEN], ids=["no room", "forbidden"])
def test_what_waits_is_not_reported(
    node: NodeFixture, annotations: dict[str, str]
) -> None:
    """Reported, it would be where it is meant to be, and start."""
    if not annotations:
        node.bind("b", 20, 1, card=1)
    pod = node.bind("a", 20, 1, card=0, annotations=annotations)
    prefers(node, UUIDS[1])
    node.admit(pod)
    for name in ("later", "last"):
        node.serving.reporter.catch_up()
        # The watch tells in order: once this one is seen, so is what came before.
        node.bind(name, 1, 1)
        with pytest.raises(CannotStartYetError, match="kubelet chose card"):
            node.devices.start(pod["metadata"]["uid"], "main")
    assert node.actual("a") is None


def test_a_container_over_two_cards_keeps_its_pod_waiting(node: NodeFixture) -> None:
    """Started, another container would have the whole pod reported where it is."""
    pod = node.bind("a", containers=[container_json("x", 4, 1), container_json("y", 8)])
    admission = node.serving.parts.device_chooser
    prefer, allocate = admission.prefer, admission.allocate

    def two_cards(asked: DeviceQuestion) -> list[str]:
        chosen, other = prefer(asked), ids_of(UUIDS[1], asked.available)
        return chosen if asked.size < 8 else [*chosen[:4], *other[:4]]

    def anyway(cards: Cards, resource: str, ids: Sequence[str]) -> Assignment:
        return allocate(cards, resource, ids_of(UUIDS[0], ids))

    admission.prefer = two_cards  # type: ignore[method-assign]
    admission.allocate = anyway  # type: ignore[method-assign]
    node.admit(pod)
    admission.allocate = allocate  # type: ignore[method-assign]
    for container in ("x", "y", "x"):
        with pytest.raises(CannotStartYetError, match="y has parts of several cards"):
            node.devices.start(pod["metadata"]["uid"], container)
    assert node.actual("a") is None


def test_two_swapped_pods(node: NodeFixture) -> None:
    first, second = node.bind("a", 20, 1, card=0), node.bind("b", 20, 1, card=1)
    prefers(node, UUIDS[1])
    node.admit(first)
    prefers(node, UUIDS[0])
    node.admit(second)
    for name, pod, uuid in (("a", first, UUIDS[1]), ("b", second, UUIDS[0])):
        given = node.devices.start(pod["metadata"]["uid"], "main")
        assert visible(given) == (uuid,)
        assert inside(given)["cards"][0]["uuid"] == uuid
        assert node.actual(name) == (uuid,)


def test_ids_of_several_cards(node: NodeFixture) -> None:
    pod = node.bind("a", 40, 1, card=None)
    node.serving.parts.device_chooser.prefer = lambda *_: []  # type: ignore[method-assign]
    assert "are of 2 cards" in node.refuse(pod)


def test_devices_that_another_pod_holds(node: NodeFixture) -> None:
    """kubelet may forget what it gave away (contracts 2.7); we do not."""
    pod = node.bind("a", 20, 1, card=0)
    node.run(pod)
    held = node.serving.reporter.resources.list(60).held_by(("default", "a"))
    node.run(node.bind("b", 5, 1, card=0))
    with pytest.raises(DeniedError, match="default/a holds"):
        node.allocate(M, sorted(held["main"][M])[:5])


def test_ids_nobody_knows(node: NodeFixture) -> None:
    with pytest.raises(DeniedError, match="no card of this node has aaaaaaaa-m0029"):
        node.allocate(M, ["aaaaaaaa-m0029"])


def test_planned_card_has_too_few_left(node: NodeFixture) -> None:
    """kubelet still holds the card for a pod the API server has forgotten."""
    ghost = node.bind("ghost", 20, 1, card=0)
    node.run(ghost)
    node.cluster.delete(Kind.PODS, "default", "ghost", grace_period_s=0)
    wait_until(
        lambda: node.serving.reporter.pods.find(("default", "ghost")) is None, "its end"
    )
    pod = node.bind("a", 20, 1, card=0)
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert node.actual("a") == (UUIDS[1],)


def test_half_admitted_pod_stays_together(node: NodeFixture) -> None:
    pod = node.bind("a", 4, 1, card=0)
    prefer = node.serving.parts.device_chooser.prefer
    asked: list[str] = []

    def once_elsewhere(question: DeviceQuestion) -> list[str]:
        asked.append(question.resource)
        if len(asked) == 1:
            return ids_of(UUIDS[1], question.available)[: question.size]
        return prefer(question)

    node.serving.parts.device_chooser.prefer = once_elsewhere  # type: ignore[method-assign]
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert set(asked) == {M, C}


def test_allocate_asks_nobody(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet waits for Allocate, and forgets what is in flight when listed."""
    asked: list[int] = []
    by_allocate: list[int] = []

    def watch(thing: object, name: str) -> None:
        def call(*args: Any, **how: Any) -> Any:
            asked.append(get_ident())
            return real(*args, **how)

        real = getattr(thing, name)
        monkeypatch.setattr(thing, name, call)

    def alone(*question: Any) -> object:
        before = asked.count(get_ident())
        answer = allocate(*question)
        by_allocate.append(asked.count(get_ident()) - before)
        return answer

    for name in ("get", "annotate", "event", "list_page"):
        watch(node.cluster, name)
    watch(node.serving.reporter.resources, "list")
    allocate = node.serving.parts.device_chooser.allocate
    monkeypatch.setattr(node.serving.parts.device_chooser, "allocate", alone)
    node.run(node.bind("a", 4, 1, card=0))
    assert asked
    assert by_allocate == [0, 0]


@pytest.mark.parametrize("planned", [True, False])
def test_whole_cards_of_an_init_container(node: NodeFixture, planned: bool) -> None:
    """They stay the pod's, though the container after it uses but one of them."""
    once, main = container_json("once", 4, 200), container_json("main", 2)
    pod = node.bind("a", card=None, init=[once], containers=[main])
    if planned:
        record = read_node_pod(pod).record
        assert isinstance(record.request, PodRequest)
        both = [Card(UUIDS[index], index, 29) for index in (0, 1)]
        shares = tuple(share_whole_cards(record.request.claims[0], both))
        placed = encode_placement(Placement(record.pod, NODE, shares), AT)
        node.cluster.annotate(Kind.PODS, "default", "a", {names.PLACEMENT: placed})
        wait_until(
            lambda: node.serving.reporter.pods.find(("default", "a")).placement,
            "the plan",
        )
    given = node.run(pod)
    assert set(visible(given["once"])) == {UUIDS[0], UUIDS[1]}
    node.serving.reporter.catch_up()
    other = node.bind("b", 2, None, card=None)
    assert "Insufficient" in node.refuse(other)
    assert node.actual("a") == (None if planned else UUIDS[:2])


SILENT = "the API server does not say which cards the pod may have: no route to host"
ONLY_THE_THIRD = {names.UUIDS: UUIDS[2]}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, *(found_card(i) for i in range(3))) as made:
        yield made


def waits(three: NodeFixture, pod: Json, because: str = SILENT) -> None:
    with pytest.raises(CannotStartYetError, match=because):
        three.devices.start(pod["metadata"]["uid"], "main")


def starts(three: NodeFixture, pod: Json) -> Sequence[str]:
    """Start the container; the cards that it sees, which are those of its file."""
    given = three.devices.start(pod["metadata"]["uid"], "main")
    seen = visible(given)
    assert tuple(one["uuid"] for one in inside(given)["cards"]) == seen
    assert inside(given)["uid"] == pod["metadata"]["uid"]
    return seen


def test_an_ordinary_pod_waits(three: NodeFixture) -> None:
    three.cut_off()
    pod = three.bind("a", 20, 1, card=1)
    three.admit(pod)
    waits(three, pod)
    three.serving.reporter.catch_up()
    three.line.cut = False
    assert starts(three, pod) == (UUIDS[0],)
    assert three.actual("a") == (UUIDS[0],)


def test_an_init_container_waits_too(three: NodeFixture) -> None:
    """Among other unknown pods nobody knew whose it was; its devices tell later."""
    three.cut_off()
    for name in ("etcd", "proxy"):
        three.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main", 3, 1)
    pod = three.bind("a", card=0, init=[once], containers=[main])
    given = three.admit(pod)
    for container in given:
        with pytest.raises(CannotStartYetError, match=SILENT):
            three.devices.start(pod["metadata"]["uid"], container)
    three.line.cut = False
    for container, units in (("once", 8), ("main", 3)):
        three.devices.start(pod["metadata"]["uid"], container)
        assert visible(given[container]) == (UUIDS[0],)
        assert inside(given[container])["container"] == container
        assert inside(given[container])["cards"][0]["units"] == units


def test_an_unknown_init_container_starts(three: NodeFixture) -> None:
    """Neither kubelet nor we can say whose it is: waiting would not end."""
    three.cut_off()
    for name in ("etcd", "proxy"):
        three.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main")
    three.run(pod_json("s-n", uid="hash", init=[once], containers=[main], node="n"))


@pytest.mark.parametrize("first", [M, C])
def test_whole_cards_wait(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """No card has so much memory, so it is of two."""
    asks_first(monkeypatch, first)
    three.cut_off()
    pod = three.bind("a", 40, 200, card=None)
    assert visible(three.admit(pod)["main"]) == UUIDS[:2]
    waits(three, pod)
    three.line.cut = False
    assert starts(three, pod) == UUIDS[:2]


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("first", [M, C])
def test_whole_cards_after_a_reboot(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str, others: int
) -> None:
    """What its memory does not tell is known from before, also among other pods."""
    asks_first(monkeypatch, first)
    pod = three.bind("a", 10, 200, card=None)
    three.run(pod)
    three.reboot_cut_off()
    for number in range(others):
        three.admit(pod_json(f"proxy-{number}", uid=f"{number}", node="n"))
    assert visible(three.admit(pod)["main"]) == UUIDS[:2]
    waits(three, pod)
    three.line.cut = False
    assert starts(three, pod) == UUIDS[:2]


def test_whole_cards_whose_memory_came_first(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pod of little memory: it would see one card for that, two for its cores."""
    asks_first(monkeypatch, M)
    three.cut_off()
    pod = three.bind("a", 10, 200, card=None)
    assert "Insufficient untouched cards" in three.refuse(pod)


def test_a_pod_that_comes_again_with_fewer_cores(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is of two cards by then, with which it could never start."""
    asks_first(monkeypatch, M)
    three.run(three.bind("a", 10, 200, card=None))
    three.end_pod("a")
    three.reboot_cut_off()
    pod = three.bind("a", 10, 20, card=None)
    assert "20 cores cannot be of 2 whole cards" in three.refuse(pod)


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("first", [M, C])
def test_a_new_pod_under_an_old_name(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str, ran: bool
) -> None:
    """What the watch told of the old one says nothing of the new one."""
    asks_first(monkeypatch, first)
    old = three.bind("web-0", 20, 1, card=0)
    if ran:
        three.run(old)
        three.tell_running("web-0")
    three.cut_off()
    three.end_pod("web-0")
    new = three.bind("web-0", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    three.admit(new)
    waits(three, new)
    three.line.cut = False
    waits(three, new, "excluded by baidu.com/vcuda-uuids")


def test_what_ran_is_restarted(three: NodeFixture) -> None:
    pod = three.bind("a", 20, 1, card=1)
    three.run(pod)
    three.cut_off()
    assert starts(three, pod) == (UUIDS[1],)


def test_a_pod_that_was_seen_before_waits_too(three: NodeFixture) -> None:
    """Nobody can tell it from a new one of its name; it is given its own card."""
    pod = three.bind("a", 20, 1, card=1)
    three.cut_off()
    three.admit(pod)
    waits(three, pod)
    three.line.cut = False
    assert starts(three, pod) == (UUIDS[1],)
    assert three.actual("a") is None


def test_a_static_pod_waits_for_nobody(three: NodeFixture) -> None:
    three.cut_off()
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    assert visible(three.run(static)["main"]) == (UUIDS[0],)


def test_a_pod_that_the_api_server_does_not_have(three: NodeFixture) -> None:
    pod = three.bind("a", 20, 1, card=1)
    three.admit(pod)
    three.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    wait_until(
        lambda: three.serving.reporter.pods.find(("default", "a")) is None, "its end"
    )
    waits(three, pod, "the API server has no such pod on this node")
