"""What a claim asks of cards, and what of it is not judged here."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.domain.model import Amount
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.resource_claims.templates import write_template
from gpusharectl.why.claim_requests import (
    CardRequests,
    read_card_requests,
    read_class_names,
)
from tests.builders import claim_json

OURS = "device.driver == 'vcuda.baidu.com'"
MODEL = 'device.attributes["vcuda.baidu.com"].model == "Tesla P4"'


def selectors(*expressions: str) -> list[Json]:
    return [{"cel": {"expression": card}} for card in expressions]


def class_of(*expressions: str) -> Json:
    return {"spec": {"selectors": selectors(*expressions)}}


CLASSES: Mapping[str, Json | None] = {
    "vcuda": class_of(OURS),
    "p4": class_of(f"  {OURS} ", MODEL),
    "mixed": class_of(f"{OURS} && {MODEL}"),
    "nvidia": class_of('device.driver == "gpu.nvidia.com"'),
    "unknown": class_of('device.attributes["x.io"].kind == "gpu"'),
    "none": None,
}


def exactly(name: str = "card", class_name: str = "vcuda", **more: Any) -> Json:
    capacity_ = {"capacity": {"requests": {"memory": "5Gi", "cores": "20"}}}
    return {"name": name, "exactly": {"deviceClassName": class_name} | capacity_ | more}


def asked(*requests: Json, constraints: tuple[Json, ...] = ()) -> CardRequests:
    claim = claim_json()
    devices = {"requests": list(requests), "constraints": list(constraints)}
    claim["spec"]["devices"] = devices
    return read_card_requests(claim, CLASSES)


def test_what_is_asked_of_a_card() -> None:
    """With the slice's defaults where nothing is said."""
    plain = {"name": "b", "exactly": {"deviceClassName": "vcuda"}}
    (card,) = asked(exactly()).cards
    assert (card.name, card.amount, card.never, card.not_judged) == (
        "card",
        Amount(20, 20),
        "",
        (),
    )
    assert asked(plain).cards[0].amount == Amount(1, 1)
    of_no_cores = exactly(capacity={"requests": {"memory": "1Gi", "cores": "0"}})
    assert asked(of_no_cores).cards[0].amount == Amount(1, 4)


@pytest.mark.parametrize(
    ("class_name", "names"),
    [
        ("p4", ["the DeviceClass p4", MODEL]),
        ("mixed", ["the DeviceClass mixed", f"{OURS} && {MODEL}"]),
        ("vcuda", []),
    ],
)
def test_a_selector_of_the_class_is_named(class_name: str, names: list[str]) -> None:
    """But for the one form that says that the device is ours."""
    (card,) = asked(exactly(class_name=class_name)).cards
    assert len(card.not_judged) == bool(names)
    assert all(name in card.not_judged[0] for name in names)


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"selectors": selectors(MODEL)}, ["only kube-scheduler can judge", MODEL]),
        ({"selectors": selectors("x" * 500)}, [f"{'x' * 120}…"]),
        ({"count": 3}, ["3 such parts", "judged for one"]),
        ({"allocationMode": "All"}, ["all such devices", "judged for one"]),
        ({"count": 1, "allocationMode": "ExactCount"}, []),
    ],
)
def test_what_is_not_judged_of_a_request_is_said(more: Json, names: list[str]) -> None:
    (card,) = asked(exactly(**more)).cards
    assert len(card.not_judged) == bool(names)
    assert all(name in card.not_judged[0] for name in names)


def test_other_drivers_devices_are_no_cards() -> None:
    """They are named beside ours; alone they are nothing of ours."""
    for class_name in ("nvidia", "unknown", "none"):
        assert asked(exactly(class_name=class_name)) == CardRequests()
    read = asked(exactly(), exactly("nic", "nvidia"), exactly("any", "unknown"))
    assert [card.name for card in read.cards] == ["card"]
    assert "request nic is for devices of another driver" in read.not_judged
    assert any("DeviceClass unknown" in text for text in read.not_judged)
    mine = exactly(class_name="unknown", selectors=selectors(OURS))
    assert len(asked(mine).cards) == 1


def test_admin_access_is_given_by_no_card() -> None:
    """As the arbiter denies it."""
    (only,) = asked(exactly("look", adminAccess=True)).cards
    assert only.never.startswith("request look has adminAccess")


@pytest.mark.parametrize("classes", [{}, {"vcuda": None}])
def test_our_class_may_be_missing_or_unreadable(
    classes: Mapping[str, Json | None],
) -> None:
    """Not known is said; a class that is not there says that no card can be meant."""
    claim = claim_json()
    claim["spec"]["devices"] = {"requests": [exactly()]}
    (card,) = read_card_requests(claim, classes).cards
    assert bool(card.never) is bool(classes)
    assert bool(card.not_judged) is not bool(classes)
    assert "DeviceClass vcuda" in (card.never or card.not_judged[0])


@pytest.mark.parametrize(
    ("capacity", "never"),
    [
        ({"memory": "0"}, "asks for 0 MiB"),
        ({"memory": "1Gi", "bandwidth": "3"}, "no capacity bandwidth"),
        ({"memory": "1"}, ""),
    ],
)
def test_what_no_card_can_be(capacity: Json, never: str) -> None:
    (card,) = asked(exactly(capacity={"requests": capacity})).cards
    assert bool(card.never) is bool(never)
    assert never in card.never


def test_alternatives_are_judged_one_by_one() -> None:
    """Each under the name that the allocation would have."""
    big = {"name": "big"} | exactly()["exactly"]
    small = {"name": "small", "deviceClassName": "vcuda"}
    read = asked({"name": "card", "firstAvailable": [big, small]})
    amounts = {card.name: card.amount.units for card in read.cards}
    assert amounts == {"card/big": 20, "card/small": 1}
    assert len(read.not_judged) == 1
    assert "firstAvailable" in read.not_judged[0]
    claim = claim_json()
    claim["spec"]["devices"] = {"requests": [{"name": "a", "firstAvailable": [small]}]}
    assert read_class_names(claim) == {"vcuda"}


def test_requests_that_must_be_of_one_card_count_as_one() -> None:
    """So a template of two parts asks one card for their sum."""
    claim = write_template([Amount(20, 8), Amount(1, 4)])["spec"]

    def found() -> dict[str, Amount]:
        cards = read_card_requests(claim, CLASSES).cards
        return {card.name: card.amount for card in cards}

    assert found() == {"card-1+card-2": Amount(21, 12)}
    assert read_card_requests(claim, CLASSES).not_judged == ()
    (constraint,) = claim["spec"]["devices"]["constraints"]
    # Without names it is about all requests.
    del constraint["requests"]
    assert found() == {"card-1+card-2": Amount(21, 12)}
    constraint["requests"] = ["card-2", "another"]
    assert found() == {"card-1": Amount(20, 8), "card-2": Amount(1, 4)}
    constraint["requests"] = 1
    with pytest.raises(Malformed, match="constraints"):
        found()
    constraint |= {"requests": [], "matchAttribute": "vcuda.baidu.com/model"}
    assert len(found()) == 2
    apart, together = read_card_requests(claim, CLASSES).not_judged
    assert "must have the same vcuda.baidu.com/model" in apart
    assert "all of them on one node" in together


def test_a_constraint_that_is_not_judged_is_said() -> None:
    apart = {"requests": ["a", "b"], "distinctAttribute": "vcuda.baidu.com/uuid"}
    read = asked(exactly("a"), exactly("b"), constraints=(apart,))
    assert "different values of vcuda.baidu.com/uuid" in read.not_judged[0]


def test_one_card_has_the_conditions_of_all_its_requests() -> None:
    """And tolerates only what all of them tolerate."""
    full = {"key": "vcuda.baidu.com/full", "operator": "Exists"}
    first = exactly("a", tolerations=[full], selectors=selectors(MODEL))
    same = {"matchAttribute": "vcuda.baidu.com/uuid"}
    (card,) = asked(first, exactly("b"), constraints=(same,)).cards
    assert (card.name, len(card.not_judged), card.tolerations) == ("a+b", 1, ())
    second = exactly("b", tolerations=[full])
    (card,) = asked(first, second, constraints=(same,)).cards
    assert card.tolerations == (("vcuda.baidu.com/full", "Exists", "", ""),)
