"""filter: dividing the names by a kept answer."""

from collections.abc import Mapping

import pytest

from extender.scheduling.service import UNKNOWN, judge, refuse_all
from gpushare.domain.cache import Answer
from gpushare.domain.model import NodeName
from gpushare.domain.refusal import Reason, Refusal, invalid

MEMORY = Refusal(Reason.MEMORY)
CORE = Refusal(Reason.CORE)
NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"
NO_CORE = "Insufficient baidu.com/vcuda-core on one card"
NO_CARDS = "No shared cards"


def nodes(text: str) -> list[NodeName]:
    return [NodeName(name) for name in text.split()]


def answer(fits: str, **refused: str) -> Answer:
    reasons = {"memory": MEMORY, "core": CORE}
    groups = {reasons[key]: set(nodes(text)) for key, text in refused.items()}
    return Answer(set(nodes(fits)), groups)


@pytest.mark.parametrize(
    ("names", "kept", "refused"),
    [
        pytest.param("b a", "b a", {}, id="all-fit-in-the-order-given"),
        pytest.param("x y", "", {"x": NO_MEMORY, "y": NO_CORE}, id="none-fits"),
        pytest.param("x b", "b", {"x": NO_MEMORY}, id="some-fit"),
        pytest.param("z", "", {"z": NO_CARDS}, id="unknown-node"),
        pytest.param(
            "z b x", "b", {"z": NO_CARDS, "x": NO_MEMORY}, id="all-three-kinds"
        ),
        pytest.param("", "", {}, id="no-names"),
        pytest.param("b b x x", "b b", {"x": NO_MEMORY}, id="names-twice"),
    ],
)
def test_every_name_is_kept_or_has_its_reason(
    names: str, kept: str, refused: Mapping[str, str]
) -> None:
    """Whatever was asked comes back, once, on one of the two sides."""
    result = judge(nodes(names), answer("a b c", memory="x", core="y"), {})
    assert list(result.kept) == nodes(kept)
    assert dict(result.refused or {}) == refused
    assert result.error == ""


@pytest.mark.parametrize(
    ("exceptions", "kept", "refused"),
    [
        pytest.param({"x": None}, "a x", {}, id="a-refused-node-fits-after-all"),
        pytest.param({"a": CORE}, "", {"a": NO_CORE, "x": NO_MEMORY}, id="and-not"),
        pytest.param({"x": CORE}, "a", {"x": NO_CORE}, id="another-reason"),
        pytest.param({"z": None}, "a", {"x": NO_MEMORY}, id="a-node-not-asked-about"),
    ],
)
def test_exceptions_overrule(
    exceptions: dict[str, Refusal | None], kept: str, refused: Mapping[str, str]
) -> None:
    """This pod may see a node otherwise than its like; only names asked about count."""
    special = {NodeName(name): no for name, no in exceptions.items()}
    result = judge(nodes("a x"), answer("a", memory="x"), special)
    assert list(result.kept) == nodes(kept)
    assert dict(result.refused or {}) == refused


def test_a_pod_that_no_node_can_take_is_refused_everywhere() -> None:
    """The same words for every node, since kube-scheduler counts by words."""
    result = refuse_all(nodes("a b"), invalid("no policy"))
    assert result.kept == ()
    assert result.refused == dict.fromkeys("ab", "Invalid vcuda request: no policy")


def test_an_unknown_node_shares_no_cards() -> None:
    """Not an error: kube-scheduler may know a node before our watch does."""
    expected = Refusal(Reason.NO_CARDS)
    assert expected == UNKNOWN
