"""Pods that say which cards they may have, asked as kube-scheduler asks."""

from dataclasses import replace

import pytest

from extender.scheduling.inflight import Pending, cautious
from gpushare.domain.cache import Fitting
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.kube.annotations import decode_placement
from gpushare.kube.codec import pod_ref
from gpushare.kube.names import MODELS, PLACEMENT, UUIDS
from tests.builders import FIRST_FIT, card, cards, event, node_json, request
from tests.extender.extender_fixture import ExtenderFixture

N = NodeName("n")
P4, T4 = card(0, 29), card(1, 29, model="Tesla T4")


def extender() -> ExtenderFixture:
    made = ExtenderFixture()
    made.nodes.apply(event("MODIFIED", node_json("n", P4, T4)))
    return made


def only(asked: PodRequest, *uuids: str) -> PodRequest:
    return replace(asked, cards=CardSelector.of(uuids=uuids))


def test_room_on_a_card_that_it_may_not_have_is_no_room_for_both() -> None:
    """The other pod may take the one card; a large one beside it changes nothing.

    What is cached for one list of cards is no answer for another.
    """
    ledger = Ledger()
    ledger.set_cards(N, cards(29, 99))
    kept = Fitting(ledger)
    for uuid, units, other, refused in (
        ("GPU-0", 20, ["GPU-0"], True),
        ("GPU-0", 20, ["GPU-1"], False),
        ("GPU-0", 9, ["GPU-0"], False),
        ("GPU-1", 20, [], False),
        ("GPU-0", 20, [], True),
    ):
        new = only(request("new", 20), uuid)
        waits = Pending(only(request("other", units), *other), FIRST_FIT, [N], 5.0)
        fits = kept.answer(new, FIRST_FIT).fits
        found = cautious(new, FIRST_FIT, [waits], kept, ledger, fits)
        assert (fits, N in found) == ({N}, refused)


def placed_on(extender: ExtenderFixture) -> tuple[str, ...]:
    pod = extender.cluster.pod("pod")
    text = pod["metadata"]["annotations"][PLACEMENT]
    found = decode_placement(text, pod_ref(pod), N)
    assert found is not None
    return found.cards()


@pytest.mark.parametrize(
    ("key", "text", "uuid"),
    [
        (MODELS, "tesla t4", "GPU-1"),
        (UUIDS, "GPU-1", "GPU-1"),
        (MODELS, "*", "GPU-0"),
        (MODELS, "!Tesla P4", "GPU-1"),
        (MODELS, "Tesla *, !*P4", "GPU-1"),
        (UUIDS, "!GPU-0", "GPU-1"),
    ],
)
def test_filter_and_bind_keep_to_the_lists(key: str, text: str, uuid: str) -> None:
    made = extender()
    pod = made.create(units=20, annotations={key: text})
    assert made.filter(pod).kept == ["n"]
    assert not made.bind(pod).error
    assert placed_on(made) == (uuid,)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("H100", "No shared cards that baidu.com/vcuda-models allows"),
        ("T*4", "Invalid vcuda request: baidu.com/vcuda-models has"),
    ],
)
def test_filter_and_bind_refuse_by_the_lists(models: str, words: str) -> None:
    made = extender()
    pod = made.create(units=20, annotations={MODELS: models})
    (told,) = (made.filter(pod).refused or {}).values()
    assert told.startswith(words)
    assert made.bind(pod).error == told


def test_a_list_may_change_while_the_pod_waits() -> None:
    made = extender()
    pod = made.create(units=20, annotations={MODELS: "H100"})
    assert not made.filter(pod).kept
    pod["metadata"]["annotations"][MODELS] = "Tesla T4"
    assert made.filter(pod).kept == ["n"]
