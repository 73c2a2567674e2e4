"""The one who looks on sees what is wrong, and nothing else."""

import json
from typing import Any

import pytest

from tests.controlplane.world import PLACEMENT
from tests.soak.books import Books
from tests.testbed.objects import pod
from tests.testbed.rest import Json

UNITS = {("n", "a"): 29, ("n", "b"): 29, ("m", "c"): 94}


def bound(
    name: str, *shares: tuple[str, int, int], node: str = "n", **asked: Any
) -> Json:
    """A running pod that has these shares, and asks what they come to."""
    asked = asked or {
        "cores": sum(cores for _, cores, _ in shares),
        "units": sum(units for _, _, units in shares),
    }
    a_pod = pod(name, **asked)
    a_pod["spec"]["nodeName"] = node
    a_pod["metadata"]["uid"] = f"uid-{name}"
    a_pod["status"] = {"phase": "Running"}
    listed = [{"card": c, "cores": cores, "units": u} for c, cores, u in shares]
    text = json.dumps({"v": 1, "uid": f"uid-{name}", "shares": listed})
    a_pod["metadata"]["annotations"][PLACEMENT] = text
    return a_pod


@pytest.mark.parametrize("second", [("a", 41, 9), ("a", 40, 10)])
def test_a_card_over_committed(second: tuple[str, int, int]) -> None:
    """By one core, or by one unit; by a change, or in a list."""
    books = Books(UNITS)
    one, two = bound("one", ("a", 60, 20)), bound("two", second)
    books.put(one)
    (fault,) = books.put(two)
    assert "('n', 'a') is over-committed" in fault
    assert "uid-one" in fault
    assert len(Books(UNITS).replace([one, two])) == 1


def test_who_holds_and_who_holds_no_more() -> None:
    """A full card is not over; who is being deleted holds on, who ended does not."""
    books = Books(UNITS)
    one, two = bound("one", ("a", 60, 20)), bound("two", ("a", 60, 20))
    assert books.put(one) + books.put(bound("rest", ("a", 40, 9))) == []
    assert books.free()["n", "a"] == (0, 0)
    assert books.part_held() == pytest.approx(29 / 152)
    books.drop("uid-rest")
    one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert books.put(one) == []
    assert books.put(two)
    for phase in ("Succeeded", "Failed"):
        books.put({**one, "status": {"phase": phase}})
        assert books.put(two) == []
    books.drop("uid-two")
    assert books.free()["n", "a"] == (100, 29)


def test_whole_cards() -> None:
    """They are the pod's alone, all of each; their units are the cards'."""
    books = Books(UNITS)
    whole = bound("one", ("a", 100, 29), ("b", 100, 29), cores=200, units=3)
    assert books.put(whole) == []
    assert books.put(bound("two", ("a", 0, 1)))


@pytest.mark.parametrize(
    ("a_pod", "says"),
    [
        (bound("p", cores=1, units=4), "without a placement"),
        (bound("p", ("c", 1, 4)), "which n does not have"),
        (bound("p", ("a", 1, 4), cores=1, units=5), "asks 1, 5 and has"),
        (bound("p", ("a", 100, 28), cores=100, units=3), "asks 100, 3 and has"),
        (
            bound("p", ("a", 100, 29), ("a", 100, 29), cores=200, units=3),
            "asks 200, 3 and has",
        ),
        (bound("p", ("a", 100, 29), cores=100, units=30), "asks 100, 30 and has"),
    ],
)
def test_a_wrong_placement(a_pod: Json, says: str) -> None:
    (fault,) = Books(UNITS).put(a_pod)
    assert fault.startswith("p ")
    assert says in fault


@pytest.mark.parametrize("text", ["{", "{}", '{"v":1,"uid":"other","shares":[]}'])
def test_a_broken_placement(text: str) -> None:
    a_pod = bound("p", ("a", 1, 4))
    a_pod["metadata"]["annotations"][PLACEMENT] = text
    (fault,) = Books(UNITS).put(a_pod)
    assert "by a broken placement" in fault
