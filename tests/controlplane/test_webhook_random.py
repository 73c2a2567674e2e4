"""Whatever pods come: never an error of ours, never a patch that cannot be applied.

The same pod is made in a namespace that we are not asked about, too: what is taken
there may be refused here in our words only, and what we make of it must be taken.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from tests.controlplane.bitfusionpods import MODE, STATUS
from tests.controlplane.gate import FREE, Gate
from tests.controlplane.newpods import asking, container, limits_of
from tests.controlplane.randompods import random_pod
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

COUNT = 900
THEIRS = "bitfusion.io/"
OURS = 'vcuda.baidu.com" denied the request: '


def tried(gate: Gate, number: int) -> str | AssertionError:
    """Give the outcome, or what was wrong with it: all of them are told."""
    try:
        return outcome(gate, number)
    except AssertionError as error:
        return error


def outcome(gate: Gate, number: int) -> str:
    """Say what became of a pod, having insisted that it may be so."""
    a_pod = random_pod(number)
    free_status, free = gate.at(FREE).post(a_pod)
    status, answer = gate.post(a_pod)
    said = f"pod {number}: {answer.get('message', '')}"
    assert status < 500, said
    if status == 201:
        sound(a_pod, answer)
        changed = answer["spec"] != free.get("spec")
        return "changed" if changed else "taken"
    if OURS in answer["message"]:
        assert "Traceback" not in said
        assert len(answer["message"].partition(OURS)[2].strip()) > 20, said
        return "denied"
    # Without us it is no pod either, and for no fault of our patch.
    assert free_status == status, f"{said}; alone: {free_status}"
    assert status in {400, 422}, said
    return "invalid"


def sound(before: Json, after: Json) -> None:
    """Insist on what holds of every pod that is taken."""
    name = before["metadata"]["name"]
    old = before["metadata"].get("annotations", {})
    new = after["metadata"].get("annotations", {})
    kept = {key: value for key, value in old.items() if key != STATUS}
    assert new.items() >= kept.items(), f"{name} has lost annotations"
    asks = list(extended(after))
    units = [each.get(MEMORY, "0").rstrip("mk") for each in asks]
    cores = [each[CORE] for each in asks if CORE in each]
    assert cores or not any(map(Decimal, units)), f"{name} asks no core"
    if new.get(STATUS) == "injected" and old.get(STATUS) != "injected":
        assert old[MODE].lower() not in ("none", ""), name
        theirs = {key for each in asks for key in each if key.startswith(THEIRS)}
        assert theirs == set(), f"{name} asks {theirs}"


def extended(a_pod: Json) -> Iterator[dict[str, str]]:
    """Give each container's limits of resources that are no node's own."""
    spec = a_pod["spec"]
    for one in (*spec["containers"], *spec.get("initContainers", ())):
        resources = one.get("resources", {})
        limits, requests = (
            {
                name: value
                for name, value in resources.get(part, {}).items()
                if "/" in name
            }
            for part in ("limits", "requests")
        )
        assert limits == requests, a_pod["metadata"]["name"]
        yield limits


def test_random_pods(gate: Gate) -> None:
    """Each kind of outcome comes about often, so that the dice are worth something."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: tried(gate, number), range(COUNT)))
    assert [each for each in found if isinstance(each, AssertionError)] == []
    counts = Counter(map(str, found))
    assert counts["changed"] >= 200, counts
    assert counts["taken"] >= 20, counts
    assert counts["denied"] >= 50, counts
    assert counts["invalid"] >= 1, counts


def test_a_thousand_containers(gate: Gate) -> None:
    """The API server's own budget for our conditions, and ours, are enough."""
    many = [container(name=f"c{number}") for number in range(999)]
    made = gate.admitted(asking(*many, container({MEMORY: 4}, "last")))
    assert limits_of(made, 999) == {MEMORY: "4", CORE: "1"}
    before = gate.reviews()
    gate.admitted(asking(*many))
    assert gate.reviews() == before


@pytest.mark.parametrize("size", [200_000, 2_900_000])
def test_large_pods(gate: Gate, size: int) -> None:
    """Up to what the API server takes at all, in one line of a script."""
    script = container({MEMORY: 4}, command=["sh", "-c", "#" * size])
    made = gate.admitted(asking(script))
    assert limits_of(made) == {MEMORY: "4", CORE: "1"}
    assert len(made["spec"]["containers"][0]["command"][2]) == size
