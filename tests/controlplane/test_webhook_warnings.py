"""What may yet work is warned of, and kubectl shows it; what --set-… sets is there."""

from collections.abc import Iterator

import pytest

from tests.controlplane.gate import Gate, asking, container, limits_of
from tests.controlplane.world import card_node
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
CLASSES = {"nvidia": "nvidia", "gold": "nvidia", "sand": "runsc"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
COMPONENTS = ("webhook-void",)
SETTINGS = {
    "GPUSHARE_SET_SCHEDULER": "vcuda-scheduler",
    "GPUSHARE_SET_RUNTIME_CLASS": "nvidia",
    "GPUSHARE_CARD_CLASSES": "gold",
}


@pytest.fixture(scope="module", autouse=True)
def classes(plane: ControlPlane) -> Iterator[None]:
    for name, handler in CLASSES.items():
        own = {"metadata": {"name": name}, "handler": handler}
        plane.rest.must("POST", RUNTIME_CLASSES, own)
    yield
    for name in CLASSES:
        plane.rest.must("DELETE", f"{RUNTIME_CLASSES}/{name}")


def warnings(gate: Gate, units: int) -> str:
    """Give what kubectl prints beside its success."""
    asked = asking(container({MEMORY: units, CORE: 1}))
    done = gate.kubectl("create", "--dry-run=server", "-f", "-", stdin=asked)
    assert done.returncode == 0, done.stderr
    assert "pod/tried created" in done.stdout
    return done.stderr


def test_no_node_has_the_resource_and_then_one_has(gate: Gate) -> None:
    """It may come with the next node: a warning, which ends by itself."""
    told = wait_until(lambda: warnings(gate, 4), "warning of no node")
    assert told.startswith("Warning: "), told
    assert "no node" in told.lower(), told
    card_node(gate.rest, "edge", 16, 29)
    wait_until(lambda: warnings(gate, 4), "silence", accept=lambda said: not said)


def test_scheduler_and_runtime_class_are_set(gate: Gate) -> None:
    """For those who ask for a card; whoever has said otherwise keeps it."""
    share = container({MEMORY: 4, CORE: 1})
    spec = gate.admitted(asking(share))["spec"]
    assert spec["schedulerName"] == "vcuda-scheduler"
    assert spec["runtimeClassName"] == "nvidia"
    spec = gate.admitted(asking(share, schedulerName="mine"))["spec"]
    assert spec["schedulerName"] == "mine"
    spec = gate.admitted(asking(container()))["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert "runtimeClassName" not in spec


def test_who_asks_for_no_card_is_shown_none(gate: Gate) -> None:
    """Under the nvidia runtime, which else shows all; a container with a share sees it.

    Others' pods are left alone.
    """
    both = asking(
        container({MEMORY: 4, CORE: 1}),
        container(name="none"),
        runtimeClassName="nvidia",
    )
    first, second = gate.admitted(both)["spec"]["containers"]
    assert "env" not in first
    assert second["env"] == [VOID]
    alone = asking(container(), runtimeClassName="nvidia")
    assert gate.admitted(alone)["spec"]["containers"][0]["env"] == [VOID]
    elsewhere = gate.admitted(asking(container()))["spec"]["containers"][0]
    assert "env" not in elsewhere
    vendors = asking(container({"nvidia.com/gpu": 1}), runtimeClassName="nvidia")
    made = gate.admitted(vendors)
    assert "env" not in made["spec"]["containers"][0]
    assert limits_of(made) == {"nvidia.com/gpu": "1"}


def test_the_class_that_brings_cards_may_have_any_name(gate: Gate) -> None:
    """The installer has read its handler. Others' classes are left alone."""
    gold = gate.admitted(asking(container(), runtimeClassName="gold"))
    assert gold["spec"]["containers"][0]["env"] == [VOID]
    sand = gate.admitted(asking(container(), runtimeClassName="sand"))
    assert "env" not in sand["spec"]["containers"][0]
    brings = container({MEMORY: 4, CORE: 1}, envFrom=[{"configMapRef": {"name": "a"}}])
    assert "envFrom[0]" in gate.denied(asking(brings, runtimeClassName="gold"))


@pytest.mark.parametrize("amounts", [None, {MEMORY: 4, CORE: 1}], ids=["none", "some"])
def test_a_debugging_container_sees_no_card(
    gate: Gate, amounts: dict[str, int] | None
) -> None:
    """Whatever its image says, in a pod with a card too: ``kubectl debug``."""
    asked = asking(container(amounts), runtimeClassName="nvidia")
    status, answer = gate.debug(gate.admitted(asked, dry_run=False))
    assert status == 200, answer
    assert answer["spec"]["ephemeralContainers"][0]["env"] == [VOID]


def test_hiding_cards_stops_nobody_when_we_are_down(gate: Gate) -> None:
    """The rest of the cluster must not wait for us: that entry fails open."""
    gate.webhook.stop()
    try:
        gate.admitted(asking(container(), runtimeClassName="nvidia"))
        assert (
            "failed calling webhook"
            in gate.post(asking(container({MEMORY: 4, CORE: 1})))[1]["message"]
        )
    finally:
        gate.webhook.start()
        gate.wait_standing()
