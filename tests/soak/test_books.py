"""The one who looks on sees what is wrong, and nothing else."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.controlplane.books import Amounts, Books, checked_books
from tests.controlplane.world import CARDS, PLACEMENT
from tests.soak.observer import Listing, Observer
from tests.soak.play import End, Form, Life
from tests.testbed.objects import node
from tests.testbed.rest import Json, Rest

UNITS = {("n", "a"): 29, ("n", "b"): 29, ("m", "c"): 94}
ONE = "c0"


def shares(*given: tuple[str, int, int], names: str = ONE) -> list[Json]:
    """Shares of one container, or of these on each card."""
    containers = {name: [1, 1] for name in names.split()}
    return [
        {"card": card, "cores": cores, "units": units, "containers": containers}
        for card, cores, units in given
    ]


def bound(
    name: str,
    *given: tuple[str, int, int],
    node: str = "n",
    asks: Sequence[Amounts] = (),
    form: Form = Form.SHARE,
    placed: Sequence[Json] | None = None,
) -> Json:
    """A running pod that has these shares, and asks what they come to."""
    total = (sum(cores for _, cores, _ in given), sum(units for *_, units in given))
    one = Life(name, form, tuple(asks or [total]), doomed=False, end=End.DELETED)
    a_pod = one.manifest("default", "soak")
    a_pod["spec"]["nodeName"] = node
    a_pod["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1"}
    a_pod["status"] = {"phase": "Running"}
    listed = shares(*given) if placed is None else placed
    text = json.dumps({"v": 1, "uid": f"uid-{name}", "shares": listed})
    a_pod["metadata"]["annotations"][PLACEMENT] = text
    return a_pod


def claim(name: str, *given: tuple[str, int, int], node: str = "n") -> Json:
    """A claim with a request for each of these, which it has."""
    asks = tuple((cores, units) for _, cores, units in given)
    one = Life(name, Form.CLAIM, asks, doomed=False, end=End.DELETED)
    body = one.claim("default")
    body["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": "1"}
    results = [
        {
            "request": f"c{number}",
            "pool": node,
            "device": card,
            "consumedCapacity": {"cores": str(cores), "memory": f"{256 * units}Mi"},
        }
        for number, (card, cores, units) in enumerate(given)
    ]
    return body | {"status": {"allocation": {"devices": {"results": results}}}}


@pytest.mark.parametrize("second", [("a", 41, 9), ("a", 40, 10)])
def test_a_card_over_committed(second: tuple[str, int, int]) -> None:
    """By one core, or by one unit; by a pod, or by a claim."""
    books = Books(UNITS)
    one, two = bound("one", ("a", 60, 20)), bound("two", second)
    books.put("pods", one)
    (fault,) = books.put("pods", two)
    assert "('n', 'a') is over-committed" in fault
    assert "uid-one" in fault
    books.drop("uid-two")
    (fault,) = books.put("claims", claim("two", second))
    assert "('n', 'a') is over-committed" in fault


def test_who_holds_and_who_holds_no_more() -> None:
    """A full card is not over; who is being deleted holds on, who ended does not."""
    books = Books(UNITS)
    one, two = bound("one", ("a", 60, 20)), bound("two", ("a", 60, 20))
    assert books.put("pods", one) + books.put("pods", bound("rest", ("a", 40, 9))) == []
    assert books.free()["n", "a"] == (0, 0)
    assert books.part_charged() == pytest.approx(29 / 152)
    books.drop("uid-rest")
    one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert books.put("pods", one) == []
    assert books.put("pods", two)
    for phase in ("Succeeded", "Failed"):
        books.put("pods", {**one, "status": {"phase": phase}})
        assert books.put("pods", two) == []
    books.drop("uid-two")
    assert books.free()["n", "a"] == (100, 29)


def test_whole_cards() -> None:
    """They are the pod's alone, all of each; their units are the cards'."""
    books = Books(UNITS)
    whole = bound("one", ("a", 100, 29), ("b", 100, 29), asks=[(200, 3)])
    assert books.put("pods", whole) == []
    assert books.put("pods", bound("two", ("a", 0, 1)))


def test_a_whole_card_by_a_claim() -> None:
    """Whole is said by one request of 100 cores; parts that add up to 100 are parts."""
    books = Books(UNITS)
    assert books.put("claims", claim("parts", ("a", 50, 2), ("a", 50, 2))) == []
    assert books.free()["n", "a"] == (0, 25)
    assert books.put("claims", claim("whole", ("b", 100, 2))) == []
    assert books.free()["n", "b"] == (0, 0)
    assert books.put("pods", bound("memory", ("a", 0, 25))) == []
    assert books.put("pods", bound("more", ("b", 0, 1)))


PARTS = [(60, 4), (40, 4)]


def apart(name: str, *placed: Json, asks: Sequence[Amounts] = ()) -> Json:
    return bound(name, asks=asks or PARTS, form=Form.APART, placed=placed)


def test_containers_apart() -> None:
    """Parts on one card are charged as parts, also if they have all of its cores."""
    books = Books(UNITS)
    assert books.put("pods", apart("p", *shares(("a", 100, 8), names="c0 c1"))) == []
    assert books.free()["n", "a"] == (0, 21)
    (first,), (second,) = shares(("a", 60, 4)), shares(("a", 40, 4), names="c1")
    assert Books(UNITS).put("pods", apart("p", first, second)) == []
    (second,) = shares(("b", 40, 4), names="c1")
    assert Books(UNITS).put("pods", apart("p", first, second)) == []
    asks = [(100, 1), (1, 1)]
    (whole,), (rest,) = shares(("a", 100, 29)), shares(("b", 1, 1), names="c1")
    assert Books(UNITS).put("pods", apart("p", whole, rest, asks=asks)) == []


@pytest.mark.parametrize(
    ("a_pod", "says"),
    [
        (bound("p", asks=[(1, 4)]), "without a placement"),
        (bound("p", ("c", 1, 4)), "which n does not have"),
        (bound("p", ("a", 1, 4), asks=[(1, 5)]), "due is {'a': (1, 5)}"),
        (bound("p", ("a", 100, 28), asks=[(100, 3)]), "due is {'a': (100, 29)}"),
        (
            bound("p", ("a", 100, 29), ("a", 100, 29), asks=[(200, 3)]),
            "has 1 whole cards",
        ),
        (bound("p", ("a", 100, 29), asks=[(200, 3)]), "has 1 whole cards"),
        (bound("p", ("a", 100, 29), asks=[(100, 30)]), "has too little memory"),
        (bound("p", ("a", 2, 2), ("b", 2, 2)), "is on several cards"),
        (apart("p", *shares(("a", 100, 29), names="c0 c1")), "due is {'a': (100, 8)}"),
        (apart("p", *shares(("a", 60, 4))), "['c1'] has no card"),
    ],
)
def test_a_wrong_placement(a_pod: Json, says: str) -> None:
    fault, *_ = Books(UNITS).put("pods", a_pod)
    assert fault.startswith("p ")
    assert says in fault


def test_a_wrong_allocation() -> None:
    """A card of another node, or not what the claim asks."""
    (fault,) = Books(UNITS).put("claims", claim("p", ("a", 1, 4), node="m"))
    assert fault == "p has a, which m does not have"
    less = claim("p", ("a", 1, 4))
    (result,) = less["status"]["allocation"]["devices"]["results"]
    result["consumedCapacity"]["memory"] = "1Gi"
    assert Books(UNITS).put("claims", less) == []
    result["consumedCapacity"]["memory"] = "768Mi"
    (fault,) = Books(UNITS).put("claims", less)
    assert fault.startswith("p asks")


def test_two_watches_are_judged_in_the_order_of_the_api_server() -> None:
    """A claim that comes after a pod has gone, though its watch was faster."""
    observer = Observer(Books(UNITS), ("pods", "claims"))
    for kind in ("pods", "claims"):
        observer.listed(kind, Listing([], revision=1, asked_at=0.0))
    observer.changed("pods", at(2, bound("first", ("a", 60, 20))))
    observer.changed("claims", at(4, claim("second", ("a", 60, 20))))
    assert observer.seen == 2
    observer.gone("pods", at(3, bound("first", ("a", 60, 20))))
    observer.changed("pods", at(5, bound("third", ("b", 1, 1))))
    assert (observer.seen, observer.faults) == (4, [])
    observer.changed("claims", at(6, claim("fourth", ("b", 1, 29))))
    observer.changed("pods", at(7, bound("fifth", ("b", 1, 1))))
    (fault,) = observer.faults
    assert "('n', 'b') is over-committed: 2 of 100 cores and 30 of 29 units" in fault


def test_what_happened_before_a_list_is_no_fault() -> None:
    """The API server was away: the pod went before the claim came, or is not known."""
    observer = Observer(Books(UNITS), ("pods", "claims"))
    for kind in ("pods", "claims"):
        observer.listed(kind, Listing([], revision=1, asked_at=0.0))
    observer.changed("pods", at(2, bound("first", ("a", 60, 20))))
    observer.changed("claims", at(4, claim("second", ("a", 60, 20))))
    ended = at(5, bound("first", ("a", 60, 20)) | {"status": {"phase": "Failed"}})
    observer.listed("pods", Listing([ended], revision=6, asked_at=0.0))
    assert observer.faults == []
    observer.changed("claims", at(7, claim("third", ("a", 60, 1))))
    observer.listed("pods", Listing([], revision=8, asked_at=0.0))
    assert len(observer.faults) == 1


def at(revision: int, an_object: Json) -> Json:
    an_object["metadata"]["resourceVersion"] = str(revision)
    return an_object


@pytest.mark.parametrize("text", ["{", "{}", '{"v":1,"uid":"other","shares":[]}'])
def test_a_broken_placement(text: str) -> None:
    a_pod = bound("p", ("a", 1, 4))
    a_pod["metadata"]["annotations"][PLACEMENT] = text
    (fault,) = Books(UNITS).put("pods", a_pod)
    assert "by a broken placement" in fault


def test_a_sum_of_all_objects_fails_over_one_fault() -> None:
    """As the tests on a control plane make it, of nodes and pods as they are now."""
    card = json.dumps({"v": 1, "cards": [{"uuid": "a", "units": 29}]})
    a_node = node("n", annotations={CARDS: card})
    one, two = bound("one", ("a", 60, 20)), bound("two", ("a", 1, 10))

    def sums(*pods: Json) -> Books:
        objects = {"/api/v1/nodes": [a_node], "/api/v1/pods": list(pods)}
        return checked_books(cast("Rest", SimpleNamespace(items=objects.get)))

    assert sums(one).free() == {("n", "a"): (40, 9)}
    with pytest.raises(AssertionError, match="over-committed"):
        sums(one, two)
