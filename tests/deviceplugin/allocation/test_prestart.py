"""The last look before a container starts, and what is written of it."""

from collections.abc import Iterator
from threading import get_ident
from typing import Any, cast

import pytest

from deviceplugin.allocation.prestart import NotYetError
from deviceplugin.pod_resources import KubeletSilentError
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Unavailable
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import container_json
from tests.deviceplugin.allocation.test_misplaced import prefers
from tests.deviceplugin.node_fixture import UUIDS, M, NodeFixture, found_card, inside


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFixture]:
    with NodeFixture(
        tmp_path_factory.mktemp("h"), found_card(0), found_card(1)
    ) as made:
        yield made


@pytest.fixture
def node(shared: NodeFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeFixture]:
    """One node for all; what a test admitted is gone after it."""
    prefer = shared.serving.admission.prefer
    yield shared
    shared.serving.admission.prefer = prefer  # type: ignore[method-assign]
    monkeypatch.undo()
    for pod in shared.serving.pods.all():
        shared.end_pod(pod.ref.name)


def fails(error: Exception) -> Any:
    def call(*_: object) -> None:
        raise error

    return call


def start(node: NodeFixture, pod: Json, container: str = "main") -> None:
    node.devices.start(pod["metadata"]["uid"], container)


def test_devices_that_nobody_holds(node: NodeFixture) -> None:
    """Neither by kubelet's list nor by what was written down."""
    with pytest.raises(NotYetError, match="not known which container holds"):
        node.start_container(M, ["aaaaaaaa-m0007"])


def test_kubelet_is_silent(node: NodeFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody knows whose they are; it asks again."""
    pod = node.bind("a", 4, 1)
    node.admit(pod)
    resources = node.serving.prestart.resources
    with monkeypatch.context() as silent:
        silent.setattr(resources, "list", fails(KubeletSilentError("no answer")))
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
    monkeypatch.setattr(node.serving.prestart.resources, "get", lambda *_: None)
    assert inside(node.run(pod)["main"])["cards"][0]["uuid"] == UUIDS[1]


def test_a_restarted_container_is_looked_at_again(node: NodeFixture) -> None:
    """And its file is there as before, also for an init container."""
    pod = node.bind(
        "a",
        containers=[container_json("main", 4, 1)],
        init=[container_json("once", 6, 2)],
    )
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
        away.setattr(node.cluster, "annotate", fails(Unavailable("no answer")))
        with pytest.raises(CannotStartYetError, match="could not be reported: no ans"):
            start(node, pod)
    start(node, pod)
    actual = node.actual("a")
    assert actual is not None
    assert actual.cards() == (UUIDS[1],)


def test_a_planned_pod_is_written_of_never(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start costs the API server nothing."""
    node.run(pod := node.bind("a", 4, 1, card=1))
    monkeypatch.setattr(node.cluster, "annotate", fails(AssertionError()))
    start(node, pod)
    node.serving.reporter.catch_up()


def test_what_was_missed_is_caught_up_with(node: NodeFixture) -> None:
    """An annotation that somebody took away; written once."""
    node.run(node.bind("a", 4, 1, card=None))
    assert node.actual("a") is not None
    gone: dict[str, str | None] = {names.ACTUAL: None}
    node.cluster.annotate(Kind.PODS, "default", "a", gone)
    # The watch tells in order: once this one is seen, so is what came before.
    node.bind("later", 1, 1)
    node.serving.reporter.catch_up()
    assert node.actual("a") is not None


def test_what_has_ended_is_forgotten(node: NodeFixture) -> None:
    """By the occupancy; records stay while they are young."""
    node.run(node.bind("a", 4, 1))
    uid = node.pod("a")["metadata"]["uid"]
    assert node.serving.occupancy.has_allocation(uid)
    node.end_pod("a")
    node.serving.pods._drop(uid)
    node.serving.reporter.catch_up()
    assert not node.serving.occupancy.has_allocation(uid)
    assert any(one.uid == uid for one in node.serving.reporter.records.all())


def test_the_loop_outlives_a_silent_kubelet(
    node: NodeFixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It reports later."""
    caplog.set_level("INFO")
    reporter = node.serving.reporter
    monkeypatch.setattr(reporter.resources, "list", fails(KubeletSilentError("no")))
    rounds = iter([False, False, True])

    class Stop:
        def wait(self, _: float) -> bool:
            return next(rounds)

    reporter.run(cast("Any", Stop()), 0)
    told = [one for one in caplog.records if one.thread == get_ident()]
    assert [one.message for one in told] == ["reporting later"] * 2
