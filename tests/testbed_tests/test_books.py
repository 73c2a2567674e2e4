"""The sums that the tests on a control plane insist on: each thing wrong is seen."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpushare.domain.model import Card, CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.books import checked_book
from tests.controlplane.world import CARDS, PLACEMENT
from tests.testbed.objects import node, pod
from tests.testbed.rest import Json, Rest

NODE = node("n", annotations={CARDS: encode_cards([Card(CardUUID("A"), 0, 29)])})
GOOD = {"card": "A", "cores": 1, "units": 15}


def bound(name: str, share: Json | None, uid: str = "", cores: int = 1) -> Json:
    """Describe a running pod of 15 units with this share in its placement."""
    made = pod(name, units=15, cores=cores, spec={"nodeName": "n"})
    made["metadata"]["uid"] = name
    if share:
        told = {"v": 1, "uid": uid or name, "shares": [share]}
        made["metadata"]["annotations"][PLACEMENT] = json.dumps(told)
    return {**made, "status": {"phase": "Running"}}


def looked_at(*pods: Json) -> Any:
    objects = {"/api/v1/nodes": [NODE], "/api/v1/pods": list(pods)}
    return checked_book(cast("Rest", SimpleNamespace(items=objects.get))).free()


def test_what_is_right_passes() -> None:
    assert looked_at(bound("a", GOOD)) == {("n", "A"): (99, 14)}


@pytest.mark.parametrize(
    "pods",
    {
        "over its units": [bound("a", GOOD), bound("b", GOOD)],
        "no placement": [bound("a", None)],
        "another pod's placement": [bound("a", GOOD, uid="b")],
        "no card of the node": [bound("a", {**GOOD, "card": "B"})],
        "less than asked": [bound("a", {**GOOD, "units": 14})],
        "part of a whole card": [bound("a", GOOD, cores=100)],
    }.items(),
    ids=lambda case: case[0],
)
def test_what_is_wrong_is_seen(pods: tuple[str, list[Json]]) -> None:
    with pytest.raises(AssertionError):
        looked_at(*pods[1])
