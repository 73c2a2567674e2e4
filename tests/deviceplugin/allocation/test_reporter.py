"""What is written of pods later, and what is removed once they have ended."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest.mock import Mock

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.node_filters import (
    NodeProperties,
    find_bar,
    read_constraints,
    read_properties,
)
from gpushare.kubelet.node_pods import KubeletSilentError
from tests.builders import container_json, pod_json
from tests.deviceplugin.allocation.test_isolation import prepare
from tests.deviceplugin.allocation.test_prestart import raising, start
from tests.deviceplugin.node_fixture import NODE, NodeFixture, because, found_card
from tests.testbed.waiting import wait_until


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
    assert node.occupancy.has_allocation(uid)
    node.end_pod("a")
    node.pods.drop(uid)
    node.serving.reporter.catch_up()
    assert not node.occupancy.has_allocation(uid)
    assert any(record.uid == uid for record in node.serving.reporter.records.all())


def sweep(node: NodeFixture, after_s: float = 0) -> set[str]:
    """Remove what has ended; return the UIDs of the records that stay."""
    replace(node.serving.reporter, keep_ended_s=after_s).catch_up()
    return {record.uid for record in node.serving.parts.records.all()}


def comes(node: NodeFixture, name: str) -> str:
    """Run a pod with an init container that ends; return its UID."""
    once, main = container_json("once", 8, 3), container_json("main", 4, 1)
    pod = node.bind(name, init=[once], containers=[main])
    node.run(pod)
    return str(pod["metadata"]["uid"])


def is_forgotten(node: NodeFixture, name: str) -> None:
    """Delete a pod by force: kubelet does not know of it yet."""
    node.cluster.delete(Kind.PODS, "default", name, grace_period_s=0)
    node.wait_gone(name)


def test_earlier_pods_of_a_name_are_swept(node: NodeFixture) -> None:
    """A StatefulSet's pod comes again with the same name, and mostly its devices."""
    for number in range(40):
        node.run(node.bind("web-0", 4, 1, card=number % 2))
        node.end_pod("web-0")
    uid = comes(node, "web-0")
    assert len(sweep(node, after_s=600)) == 41
    node.restart()
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
    monkeypatch.setattr(
        reporter.occupancy.resources, "list", raising(KubeletSilentError("no"))
    )
    reporter.run(Mock(wait=Mock(side_effect=[False, False, True])), 0)
    told = [line for line in caplog.records if line.thread == get_ident()]
    assert [line.message for line in told] == ["reporting later"] * 2
