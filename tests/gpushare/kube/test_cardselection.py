"""The annotations by which a pod says which cards it may have."""

import pytest

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import PodRequest
from gpushare.domain.refusal import Reason, Refusal
from gpushare.kube import names
from gpushare.kube.annotations import card_selector
from gpushare.kube.codec import pod_ref, pod_request, refusal_text
from tests.builders import pod_json


def words(**lists: str) -> str:
    """Why a pod with these lists is refused."""
    keys = {"models": names.MODELS, "uuids": names.UUIDS}
    found = card_selector({keys[name]: text for name, text in lists.items()})
    assert isinstance(found, Refusal)
    return refusal_text(found)


def test_lists_with_commas() -> None:
    """Blanks and empty entries do no harm, as in an operator's lists."""
    found = card_selector({names.MODELS: " Tesla P4,,A10* , ", names.UUIDS: "GPU-1"})
    assert found == CardSelector.of(["Tesla P4", "A10*"], ["GPU-1"])


def test_a_pod_without_a_list_may_have_every_card() -> None:
    """As nearly all pods."""
    assert card_selector({}) is None
    assert card_selector({names.POLICY: "spread"}) is None


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_a_list_of_nothing_is_refused(text: str) -> None:
    """It would allow no card at all; leaving it out allows them all."""
    assert words(models=text) == (
        "Invalid vcuda request: baidu.com/vcuda-models names nothing; name some, as "
        'in "Tesla T4" or "!Tesla T4", with the quotes in YAML, or leave it out'
    )
    assert "baidu.com/vcuda-uuids names nothing" in words(uuids=text)


@pytest.mark.parametrize("entry", ["RTX * Ada", "a*b*", "***", "*a*b*"])
def test_a_star_in_the_middle_is_refused(entry: str) -> None:
    """It would match nothing, and nobody would know why."""
    assert f'vcuda-models has "{entry}"; a * may stand first or last only' in words(
        models=f"T4,{entry}"
    )


@pytest.mark.parametrize("entry", ["GPU 1", "GPU-*", "-1", "ä", "0" * 101, "a/b"])
def test_what_is_no_uuid_is_refused(entry: str) -> None:
    """With where to find one."""
    found = words(uuids=f"GPU-0,{entry}")
    assert "baidu.com/vcuda-uuids has" in found
    assert "as gpusharectl inspect shows it" in found


def test_a_list_may_deny() -> None:
    """A blank after the ! does no harm."""
    found = card_selector({names.MODELS: "!Tesla P4, ! T4*", names.UUIDS: "!GPU-1"})
    assert found == CardSelector.of(["!Tesla P4", "!T4*"], ["!GPU-1"])


@pytest.mark.parametrize("entry", ["!", "! ", "!!P4", "! !P4"])
def test_a_denial_of_nothing_is_refused(entry: str) -> None:
    """It is a slip: what it was to deny is not there."""
    for lists in ({"models": f"T4,{entry}"}, {"uuids": f"GPU-0,{entry}"}):
        assert "; after one ! comes what is not allowed" in words(**lists)


def test_what_is_denied_must_be_a_name_too() -> None:
    """As what is allowed."""
    assert "a * may stand first or last only" in words(models="!RTX * Ada")
    assert "as gpusharectl inspect shows it" in words(uuids="!GPU 1")


def test_users_words_are_fit_for_an_event() -> None:
    """kube-scheduler takes a percent sign for a format."""
    assert "%" not in words(uuids="%s")
    assert len(words(uuids="x" * 5000)) < 300


def test_a_list_has_an_end() -> None:
    """Each entry is held against each card of the cluster."""
    names_of_32 = ",".join(f"m{n}" for n in range(32))
    assert isinstance(card_selector({names.MODELS: names_of_32}), CardSelector)
    assert "names 33 things; it may name 32" in words(models=f"{names_of_32},one-more")


def test_a_pods_request_has_its_lists() -> None:
    """Beside claims and policy."""
    pod = pod_json(units=1, annotations={names.UUIDS: "GPU-0"})
    asked = pod_request(pod, pod_ref(pod))
    assert isinstance(asked, PodRequest)
    assert asked.cards == CardSelector.of(uuids=["GPU-0"])


def test_a_pod_with_a_broken_list_is_refused_everywhere() -> None:
    """As any other request that no node can meet."""
    pod = pod_json(units=1, annotations={names.UUIDS: ","})
    asked = pod_request(pod, pod_ref(pod))
    assert isinstance(asked, Refusal)
    assert asked.reason is Reason.INVALID
