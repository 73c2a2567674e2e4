"""Why top knows less of a node than it should, in words, with the next step."""

import pytest

from tests.gpusharectl.pages import TICK, Says, Shown, Use, page
from tests.gpusharectl.scenes import A, B, node_2
from tests.gpusharectl.topscenes import Scene, no_exporters, scene, silent, unknown


def told(*shown: Shown, says: Says | None = None) -> list[str]:
    """What is said of node-2 with such a page."""
    body = page(*shown, told=says, node="node-2")
    found: Scene = scene([node_2()], [], {"node-2": body})
    troubles = found.top().troubles
    assert {one.about for one in troubles} <= {"node-2"}
    return [one.what for one in troubles]


def test_an_exporter_that_is_well_is_no_trouble() -> None:
    """Nothing is to be looked at."""
    assert told(Shown(A), Shown(B, 1)) == []


def test_each_silence_has_its_reason() -> None:
    """And its own next step."""
    told = {one.about: one for one in silent().top().troubles}
    assert list(told) == ["node-a", "node-b", "node-c", "node-e", "node-f"]
    assert "may not be asked" in told["node-a"].what
    assert "does not answer" in told["node-b"].what
    assert "cannot be read" in told["node-c"].what
    assert "is not ready" in told["node-e"].what
    assert told["node-f"].do == "gpusharectl install --with-monitoring"
    assert len({one.do for one in told.values()}) == 5


def test_nodes_with_the_same_reason_are_named_together() -> None:
    """A cluster without exporters is one thing to look at."""
    (trouble,) = no_exporters().top().troubles
    assert trouble.about == "node-1, node-2"


def test_why_sm_is_unknown() -> None:
    """Where the driver does not tell it of each process."""
    (trouble,) = unknown().top().troubles
    assert trouble.about == "node-2"
    assert trouble.what.endswith("what each pod computes on card 0")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({}, "its exporter has read nothing yet"),
        ({"memory": TICK}, "its exporter reads no processes"),
        ({"memory": TICK, "processes": TICK - 61}, "its numbers of processes are 61s"),
        ({"memory": TICK - 59, "processes": TICK}, ""),
        ({"memory": TICK - 99, "processes": TICK - 99}, "by this computer's clock"),
    ],
)
def test_old_numbers_are_said_to_be_old(times: dict[str, float], words: str) -> None:
    """Against the node's own newest, and against our clock."""
    found = told(Shown(A), says=Says(times=times))
    assert [words in one for one in found] == ([True] if words else [])


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("cards", "its exporter finds no card, or no driver that answers"),
        ("pods", "its exporter cannot read the pods of its node"),
        ("processes", "its exporter cannot tell whose processes are whose"),
        ("tomorrow", "its exporter has trouble with tomorrow"),
    ],
)
def test_what_the_exporter_misses(about: str, words: str) -> None:
    """In a sentence, where we know the word."""
    assert told(says=Says((about,))) == [words]


def test_cards_that_did_not_answer_it() -> None:
    """Some of its rounds did not come round."""
    assert told(says=Says(failed=("memory", "utilization"))) == [
        "its exporter did not get this of every card: memory, utilization"
    ]


@pytest.mark.parametrize(
    ("source", "sm", "mib", "said"),
    [
        ("none", None, 10, 1),
        ("none", None, 0, 0),
        ("none", 5, 10, 0),
        ("card", None, 10, 0),
    ],
)
def test_unknown_sm_is_explained_where_somebody_computes(
    source: str, sm: float | None, mib: float, said: int
) -> None:
    """Not where a card has nobody at work."""
    use = Use("p", mib, sm, allocated=None)
    assert len(told(Shown(A, source=source, uses=(use,)))) == said


def test_what_strangers_compute_is_nobodys_question() -> None:
    """Only pods have a row in which it could stand."""
    assert told(Shown(A, source="none", outside=900)) == []
