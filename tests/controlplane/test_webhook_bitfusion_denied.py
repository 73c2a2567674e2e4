"""What is wrong with pods written for Bitfusion, and what they are only warned of."""

from collections.abc import Iterator

import pytest

from tests.controlplane.bitfusionpods import (
    ALL,
    AMOUNT,
    GPU_MEMORY,
    MODE,
    PERCENT,
    share,
)
from tests.controlplane.gate import Gate, raised
from tests.controlplane.newpods import asking, container, limits_of
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.sweep import new_namespace, sweep

pytestmark = pytest.mark.controlplane

DENIED = 'admission webhook "bitfusion.vcuda.baidu.com" denied the request: '


@pytest.fixture(scope="module")
def house(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("webhook-denied")
    with raised(plane, folder, TOTAL_GPU_MEMORY="16000") as gate:
        yield gate


@pytest.fixture
def gate(house: Gate) -> Iterator[Gate]:
    yield house.at(new_namespace(house.rest))
    sweep(house.rest)


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "V1-nothing": (share(0), "Invalid bitfusion.io/gpu-percent quantity: 0 "),
    "V1-too-much": (share(101), "Invalid bitfusion.io/gpu-percent quantity: 101 "),
    "V1-negative": (share(-1), "Invalid bitfusion.io/gpu-percent quantity: -1 "),
    "V2-percent": ({PERCENT: 50}, "No gpu num was provided but found percent "),
    "V2-memory": ({GPU_MEMORY: "8000M"}, "No gpu num was provided but found percent "),
    "V3": (share(50, 0), "gpuNum.Value() Error "),
    "V4-nothing": ({AMOUNT: 1, GPU_MEMORY: 0}, "Memory value Error "),
    "V4-bytes": ({AMOUNT: 1, GPU_MEMORY: 8000}, "did you mean 8000M"),
    "M5": ({AMOUNT: 1, GPU_MEMORY: "8000M", PERCENT: 0}, "gpu-percent quantity: 0 "),
    "M6-percent": (share(50, 2), "one card"),
    "M6-memory": ({AMOUNT: 2, GPU_MEMORY: "8000M"}, "one card"),
}


@pytest.mark.parametrize("name", WRONG)
def test_denied_as_the_original_did(gate: Gate, name: str) -> None:
    """In the words that its users search for, and more, as kubectl prints them."""
    asks, says = WRONG[name]
    a_pod = asking(container(asks), annotations=ALL)
    done = gate.kubectl("create", "-f", "-", stdin=a_pod)
    assert done.returncode != 0, done.stdout
    assert DENIED in done.stderr
    assert says in done.stderr
    assert "spec.containers[0]" in done.stderr
    assert gate.pods() == []


@pytest.mark.parametrize("annotations", [ALL, {}], ids=["ours", "nobodys"])
def test_v6_requests_are_limits(gate: Gate, annotations: dict[str, str]) -> None:
    """Of such resources they must be: translated pods get no way round that."""
    one = container(share(50))
    one["resources"]["requests"] = {AMOUNT: "1", PERCENT: "30"}
    told = gate.denied(asking(one, annotations=annotations))
    assert PERCENT in told
    assert "30" in told or "must be equal to" in told


def test_client_packages_are_not_needed(gate: Gate) -> None:
    """M14: translated all the same; kubectl shows a warning, and a short one."""
    a_pod = asking(container(share()), annotations={MODE: "all"})
    done = gate.kubectl("create", "-f", "-", stdin=a_pod)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line]
    assert all(line.startswith("Warning: ") for line in told), told
    assert any("bitfusion-client/os" in line for line in told), told
    (made,) = gate.pods()
    assert limits_of(made) == {CORE: "50", MEMORY: "29"}
