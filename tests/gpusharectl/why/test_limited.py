"""What why says of a pod that names the cards that it may have."""

from functools import partial

from hypothesis import given

from gpushare.domain.model import PodRequest
from gpushare.domain.node import Node
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.state.read import Picture
from gpusharectl.state.render import source
from gpusharectl.why.explain import why
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import answer_data
from gpusharectl.why.verdict import judge
from tests.builders import FIRST_FIT, bound_json, card, placement
from tests.gpusharectl.golden import drawn
from tests.gpusharectl.pictures import NOW, node_of, picture
from tests.gpusharectl.scenes import SCENES, asking
from tests.test_card_laws import asked, mixed, only_wanted
from tests.test_laws import moderately

P4, T4 = card(0, 29), card(1, 29, model="Tesla T4")


def said(seen: Picture, pod: Json) -> str:
    answer = why(seen, pod)
    found = drawn(
        partial(draw_answer, answer=answer, now=NOW, source=source(seen.books))
    )
    return " ".join(found.split())


def two_cards(*pods: Json, wish: str, key: str = names.MODELS) -> tuple[Picture, Json]:
    pod = asking(units=20, annotations={key: wish})
    return picture([node_of("n", P4, T4)], [*pods, pod]), pod


def test_no_card_is_of_such_a_model() -> None:
    """How many are excluded, by what, and what to do."""
    found = said(*two_cards(wish="H100, *GH200*"))
    assert (
        "no node has a card that is open to it; 2 of 2 cards excluded by "
        "baidu.com/vcuda-models."
    ) in found
    assert "It may have cards of the models *gh200*, h100, and no others." in found
    assert found.count("excluded by baidu.com/vcuda-models") == 3
    assert "To run it: allow it more cards (baidu.com/vcuda-models)." in found


def test_what_it_may_not_have_is_said() -> None:
    """A list that denies a model leaves the others."""
    full = bound_json(placement("p", 1, 25, 1))
    found = said(*two_cards(full, wish="!Tesla P4"))
    assert "It may have cards of any model but tesla p4, and no others." in found
    assert "0 29 units, 100 cores excluded by baidu.com/vcuda-models" in found
    assert "free n card 1 of default/p" in found
    found = said(*two_cards(full, wish="!GPU-0", key=names.UUIDS))
    assert "It may have cards with any UUID but gpu-0, and no others." in found


def test_both_lists_are_named() -> None:
    """Each card with the ones that exclude it."""
    pod = asking(annotations={names.MODELS: "Tesla P4", names.UUIDS: "GPU-9"})
    found = said(picture([node_of("n", P4, T4)], [pod]), pod)
    both = "baidu.com/vcuda-models and baidu.com/vcuda-uuids"
    assert f"2 of 2 cards excluded by {both}" in found
    assert f"1 29 units, 100 cores excluded by {both}" in found
    assert "of the model tesla p4, and with the UUID gpu-9, and no others" in found


def test_more_cards_help_only_where_one_has_room() -> None:
    """Else the pods on those it may have are named alone."""
    full = [bound_json(placement(f"p{n}", n, 25, 1)) for n in (0, 1)]
    found = said(*two_cards(*full, wish="Tesla T4"))
    assert "free n card 1 of default/p1" in found
    assert "allow it more cards" not in found
    assert "default/p0" not in found


def test_what_it_may_have_is_too_small_for_ever() -> None:
    """Asking less, other cards, or a node."""
    pod = asking(units=40, annotations={names.MODELS: "Tesla T4"})
    held = bound_json(placement("p", 1, 29, 1))
    found = said(picture([node_of("n", P4, T4)], [held, pod]), pod)
    assert "no card that it may have is large enough" in found


def test_room_on_a_card_that_it_may_have() -> None:
    """Nothing is said of exclusion where it is not the reason."""
    found = said(*two_cards(wish="Tesla T4"))
    assert "there is room on n" in found
    assert "2 of 2" not in found


def test_exclusion_in_numbers() -> None:
    """The pod's lists, and for each card the annotations that exclude it."""
    seen = SCENES["selected"]()
    picky, mine = (
        next(pod for pod in seen.pods if pod["metadata"]["name"] == name)
        for name in ("picky", "mine")
    )
    data = answer_data(why(seen, picky), seen.books)
    assert (data["models"], data["uuids"]) == (["a10", "rtx 3090"], None)
    excluded = [card["excluded_by"] for node in data["nodes"] for card in node["cards"]]
    assert excluded == [[], [names.MODELS], [names.MODELS]]
    assert [node["fits_now"]["shares"] for node in data["nodes"]][1] == []
    placed = answer_data(why(seen, mine), seen.books)
    assert (placed["models"], placed["uuids"]) == (None, ["gpu-7cf0b881"])
    assert placed["earlier"][0]["because"] == "is excluded by baidu.com/vcuda-uuids"


@moderately
@given(mixed(), asked)
def test_a_card_that_is_excluded_never_fits(page: Node, asks: PodRequest) -> None:
    """And what would fit now is of the others alone."""
    verdict = judge(asks, page, FIRST_FIT)
    for one in verdict.cards:
        if one.excluded:
            assert not one.fits
            assert not one.ever
    seen = only_wanted(page.as_seen_by(asks.pod), asks)
    assert verdict.offers.shares == judge(asks, seen, FIRST_FIT).offers.shares
