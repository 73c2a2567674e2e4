"""What inspect says of the webhook: nothing, but where none of it is ready."""

from functools import partial
from typing import Any, cast

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Ref
from gpusharectl.install.webhook.objects import CONFIGURATIONS
from gpusharectl.install.webhook.probe import narrowed
from gpusharectl.state.read import Picture, Trouble, with_webhook
from gpusharectl.state.render import draw
from gpusharectl.state.serialize import survey_data
from gpusharectl.state.troubles import troubles
from gpusharectl.state.view import survey
from tests.builders import card
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.gpusharectl.pictures import in_order, node_of, part, picture


class Hands:
    """Stands in for ``Objects``: the configuration, or why it cannot be had."""

    def __init__(self, answer: Json | ClusterError | None) -> None:
        self._answer = answer

    def get(self, ref: Ref) -> Json | None:
        assert ref in CONFIGURATIONS
        if isinstance(self._answer, ClusterError):
            raise self._answer
        return self._answer


ASKED: Json = {"webhooks": [{"matchConditions": [{"name": "asks-for-cards"}]}]}
UNKNOWN = Forbidden("mutatingwebhookconfigurations is forbidden")


def seen(ready: list[bool], answer: Json | ClusterError | None) -> Picture:
    node = node_of("gpu-1", card(0, 29))
    pods = [
        part(f"gpushare-webhook-{at}", "gpushare-webhook", ready=well)
        for at, well in enumerate(ready)
    ]
    found = picture([node], parts=[*in_order(node), *pods])
    return with_webhook(found, cast("Any", Hands(answer)))


def told(found: Picture) -> list[Trouble]:
    return list(troubles(found))


@pytest.mark.parametrize(
    ("ready", "answer"),
    [
        ([True, True], ASKED),
        ([False, True], ASKED),
        ([], None),
        ([], UNKNOWN),
        ([True], UNKNOWN),
    ],
    ids=["well", "one-of-two", "none-wanted", "not-known", "well-not-known"],
)
def test_nothing_is_said(ready: list[bool], answer: Any) -> None:
    """Without it nobody misses it, and one that is ready will do."""
    assert told(seen(ready, answer)) == []


@pytest.mark.parametrize(
    ("ready", "answer", "words", "do"),
    [
        (
            [False, False],
            ASKED,
            "none of its pods in kube-system is ready: 2 there; until one is, no pod",
            "describe pods -l app.kubernetes.io/name=gpushare-webhook",
        ),
        (
            [False],
            UNKNOWN,
            "none of its pods in kube-system is ready: 1 there; until one is, no pod",
            "describe pods -l app.kubernetes.io/name=gpushare-webhook",
        ),
        (
            [False],
            None,
            "1 there; the API server does not ask it either, so pods are made unseen",
            "describe pods -l app.kubernetes.io/name=gpushare-webhook",
        ),
        (
            [],
            ASKED,
            "the API server asks it, and no pod of it is in kube-system; until one is",
            "describe deployment gpushare-webhook",
        ),
    ],
    ids=["none-ready", "not-known", "not-asked", "no-pod"],
)
def test_none_of_it_is_ready(
    ready: list[bool], answer: Any, words: str, do: str
) -> None:
    """What that means for pods, and where to look."""
    (one,) = told(seen(ready, answer))
    assert one.about == "webhook"
    assert words in one.what
    assert one.do == f"kubectl -n kube-system {do}"


@pytest.mark.parametrize("ref", CONFIGURATIONS, ids=lambda ref: ref.kind)
def test_an_install_that_was_cut_off(ref: Ref) -> None:
    """The API server asks about the trial's pod, and about no other."""

    class Cut(Hands):
        def get(self, asked: Ref) -> Json | None:
            return narrowed(ASKED) if asked == ref else super().get(asked)

    found = with_webhook(seen([True], ASKED), cast("Any", Cut(ASKED)))
    (one,) = told(found)
    assert one.about == "webhook"
    assert one.what.startswith("an install was cut off: the API server asks it about")
    assert one.do.startswith("run it again: gpusharectl install")
    assert found.reviewed is False


def test_its_screen() -> None:
    found = survey(seen([False, False], ASKED))
    screen = drawn(partial(draw, seen=found))
    assert [line for line in screen.splitlines() if len(line) > 80] == []
    assert_as_kept("inspect-webhook_down", screen)


def test_as_data() -> None:
    """JSON and YAML give it among the warnings, as all else that is wrong."""
    found = seen([], ASKED)
    (one,) = told(found)
    assert survey_data(survey(found))["warnings"] == [
        {"about": "webhook", "what": one.what, "do": one.do}
    ]
