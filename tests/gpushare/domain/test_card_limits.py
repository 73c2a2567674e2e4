"""Pods that say which cards they may have: where they go, and why not elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpushare.domain.cache import Fitting
from gpushare.domain.card_selector import CardSelector, Limit
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Card,
    HostAmount,
    NodeName,
    Placement,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import place, refusal, schedule
from gpushare.domain.preemption import Facts, Victims, choose_victims
from gpushare.domain.refusal import Reason, Refusal
from gpushare.kube.codec import refusal_text
from tests.builders import (
    FIRST_FIT,
    SPREAD,
    apart,
    card,
    node,
    placement,
    request,
    roomy,
)

P4, T4 = (card(0, 29), card(1, 60, model="Tesla T4"))
SHORT = "Insufficient baidu.com/vcuda-memory on one card that"
MIXED = node(P4, T4, card(2, 29), card(3, 60, model="Tesla T4"))


def wants(
    asked: PodRequest, *, models: Sequence[str] = (), uuids: Sequence[str] = ()
) -> PodRequest:
    return replace(asked, cards=CardSelector.of(models, uuids))


def cards_of(found: object) -> tuple[str, ...]:
    assert isinstance(found, Placement)
    return found.cards()


def why(asked: PodRequest, page: Node) -> str:
    """Both decisions refuse, with the same words."""
    no = refusal(asked, page, FIRST_FIT)
    assert no == place(asked, page, FIRST_FIT)
    assert no is not None
    return refusal_text(no)


@pytest.mark.parametrize(
    ("models", "uuids", "card_"),
    [
        (["Tesla T4"], [], "GPU-1"),
        ([], ["GPU-2"], "GPU-2"),
        (["*T4"], ["GPU-2", "GPU-3"], "GPU-3"),
        (["*"], [], "GPU-0"),
    ],
)
def test_the_first_card_that_it_may_have(
    models: list[str], uuids: list[str], card_: str
) -> None:
    asked = wants(request(units=10), models=models, uuids=uuids)
    assert cards_of(place(asked, MIXED, FIRST_FIT)) == (card_,)
    assert refusal(asked, MIXED, FIRST_FIT) is None


def test_whole_cards_too() -> None:
    asked = wants(request(cores=200), models=["Tesla P4"])
    assert cards_of(place(asked, MIXED, FIRST_FIT)) == ("GPU-0", "GPU-2")
    assert why(wants(request(cores=300), models=["Tesla P4"]), MIXED) == (
        "Insufficient untouched cards that baidu.com/vcuda-models allows"
    )


def test_containers_apart_too() -> None:
    asked = wants(apart("pod", 20, 40, 20), uuids=["GPU-1", "GPU-3"])
    assert sorted(cards_of(place(asked, MIXED, SPREAD))) == ["GPU-1", "GPU-3"]
    assert "one card that baidu.com/vcuda-uuids allows" in why(
        wants(apart("pod", 40, 40, 40), uuids=["GPU-1", "GPU-3"]), MIXED
    )


@pytest.mark.parametrize(
    ("asked", "page", "text"),
    [
        (
            wants(request(units=20, cores=1), models=["T4", "Tesla T4"]),
            node(P4, T4, holds=[placement("a", 1, 50, 1)]),
            f"{SHORT} baidu.com/vcuda-models allows",
        ),
        (
            wants(request(units=20), models=["Tesla T4"], uuids=["GPU-1"]),
            node(P4, T4, holds=[placement("a", 1, 50, 1)]),
            f"{SHORT} baidu.com/vcuda-models and baidu.com/vcuda-uuids allow",
        ),
        *(
            (
                wants(request(units=1), models=models),
                page,
                "No shared cards that baidu.com/vcuda-models allows",
            )
            for models, page in (
                (["A10"], MIXED),
                (["Tesla T4"], node(P4, replace(T4, healthy=False))),
                (["Tesla T4"], node(P4, replace(T4, cordoned=True))),
            )
        ),
    ],
    ids=["full", "both lists", "none here", "sick", "cordoned"],
)
def test_the_refusal_says_of_which_cards_it_speaks(
    asked: PodRequest, page: Node, text: str
) -> None:
    assert why(asked, page) == text


def test_lists_that_shut_nothing_out_are_not_blamed() -> None:
    """The plain words then, so that the event counts such nodes with the others."""
    asked = wants(request(units=99), models=["Tesla*"])
    assert why(asked, MIXED) == "Insufficient baidu.com/vcuda-memory on one card"
    closed = node(card(0, healthy=False), card(1, model="A10", cordoned=True))
    assert why(wants(request(units=1), models=["T4"]), closed) == "No shared cards"


def test_a_pod_of_which_nobody_knows_the_card_is_charged_on_these_too() -> None:
    """It may be on them whatever others want."""
    page = node(P4, T4, unplaced=[request("lost", 50)])
    assert place(wants(request(units=11), uuids=["GPU-1"]), page, FIRST_FIT) == Refusal(
        Reason.MEMORY, limits=(Limit.UUIDS,)
    )
    assert refusal(wants(request(units=10), uuids=["GPU-1"]), page, FIRST_FIT) is None


def test_a_node_is_chosen_that_has_them() -> None:
    pages = [
        node(card(0, 10), name="a"),
        node(T4, name="b"),
        node(T4, name="c", holds=[placement("x", 1, 60, node="c")]),
    ]
    asked = wants(request(units=20), models=["Tesla T4"])
    found = schedule(asked, pages, FIRST_FIT)
    assert isinstance(found, Placement)
    assert (found.node, found.cards()) == ("b", ("GPU-1",))
    refused = schedule(wants(request(units=61), models=["Tesla T4"]), pages, FIRST_FIT)
    assert isinstance(refused, dict)
    assert [no.limits for no in refused.values()] == [(Limit.MODELS,), (), ()]


def test_kept_answers_tell_wishes_apart() -> None:
    ledger = Ledger()
    its: dict[str, Card] = {"a": P4, "b": T4}
    for name, one in its.items():
        ledger.set_cards(NodeName(name), [one])
    fitting = Fitting(ledger)
    plain = request(units=5)
    assert fitting.answer(plain, FIRST_FIT).fits == {"a", "b"}
    for model, name in {"Tesla P4": "a", "Tesla T4": "b"}.items():
        assert fitting.answer(wants(plain, models=[model]), FIRST_FIT).fits == {name}
    assert fitting.answer(plain, FIRST_FIT).fits == {"a", "b"}


def test_victims_leave_a_card_that_it_may_have() -> None:
    page = node(
        P4,
        T4,
        holds=[placement("cheap", 0, 29), placement("dear", 1, 60, priority=5)],
    )
    vip = request("vip", units=20, priority=10, host=HostAmount())
    asked, facts = wants(vip, models=["Tesla T4"]), Facts(roomy())
    proposal = Victims((PodUID("uid-cheap"),))
    found = choose_victims(asked, page, proposal, FIRST_FIT, facts)
    assert found == Victims((PodUID("uid-dear"),))
    nowhere = wants(asked, models=["A10"])
    assert choose_victims(nowhere, page, proposal, FIRST_FIT, facts) is None


def test_victims_for_several_claims_keep_to_them_too() -> None:
    page = node(
        card(0, 29),
        card(1, 29, model="T4"),
        card(2, 29, model="T4"),
        holds=[placement(f"p{n}", n, 29, priority=n) for n in range(3)],
    )
    pod = replace(apart("vip", 20, 20, priority=10), host=HostAmount())
    asked, facts = wants(pod, models=["T4"]), Facts(roomy())
    proposal = Victims((PodUID("uid-p0"),))
    found = choose_victims(asked, page, proposal, FIRST_FIT, facts)
    assert found is not None
    assert set(found.uids) == {"uid-p1", "uid-p2"}
