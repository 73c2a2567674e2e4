"""What if, asked of a real API server: what it gives, and what it leaves alone."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.livereader import GETS, account, documented, played, ran
from tests.controlplane.livescene import scene, versions
from tests.testbed.controlplane import ControlPlane

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

LEFT_OUT = "Not tried: 1 pod with scheduling gates; 1 pod that asks for no card."


@pytest.fixture(scope="module")
def edge(plane: ControlPlane) -> Iterator[str]:
    """A namespace of a cluster in the middle of its day; all tests only read it."""
    with scene(plane.rest) as space:
        yield space


@pytest.fixture
def reader(plane: ControlPlane) -> tuple[str, str]:
    """Whoever has the documented rights, and no others."""
    return account(plane, documented())


def where(run: dict[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["node"] for one in run["pods"]}


def test_as_it_is(edge: str, reader: tuple[str, str]) -> None:
    """What waits is tried beside what runs; what is left out is told."""
    found = played(reader[1])
    (run,) = found["runs"]
    assert (run["policy"], run["end"]["held_units"]) == ("spread", 60)
    assert where(run) == {"big": None}
    assert run["not_placed"][0]["reasons"] == {
        "Insufficient baidu.com/vcuda-memory on one card": 2,
        "No shared cards": 1,
    }
    assert found["remarks"] == [
        "The policy is the extender's: spread.",
        "Played: 1 pod that waits is tried.",
        LEFT_OUT,
    ]


def test_another_node(edge: str, reader: tuple[str, str]) -> None:
    """The pod that waits goes there, and so much more fits than before."""
    (before,) = played(reader[1], "--room", "20")["runs"]
    (after,) = played(reader[1], "--room", "20", "--add", "gpu-1=2")["runs"]
    # gpu-1 has 30 units free on one card, gpu-2 has 20; a new one has 40 and 40.
    assert [run["room"][0]["number"] for run in (before, after)] == [2, 8]
    assert where(after)["big"] in ("gpu-1-new-1", "gpu-1-new-2")


def test_cpu_that_others_take(edge: str, reader: tuple[str, str]) -> None:
    """A pod without a card holds it, whoever placed it: 3.5 of 8 are left on gpu-2."""
    (run,) = played(reader[1], "--room", "units=5,cpu=3", "--room", "5")["runs"]
    assert [room["number"] for room in run["room"]] == [3, 12]


def test_a_drained_node(edge: str, reader: tuple[str, str]) -> None:
    """Its pods are looked for room for, the one without a card as well."""
    (run,) = played(reader[1], "--drain", "gpu-2")["runs"]
    assert (run["moved"], run["rehoused"]) == (2, 2)
    places = {one["first"]: one["node"] for one in run["pods"]}
    assert places["voice"] == "gpu-1"
    assert places["database"] in ("gpu-1", "plain")
    done = ran(reader[1], "--drain", "gpu-1")
    assert done.stdout.startswith(
        "Placed: 1 of 3 pods; 2 had to move, 1 of them found room.\n"
    )


def test_another_policy(edge: str, reader: tuple[str, str]) -> None:
    """Side by side, and all pods anew: only then does the one that waits fit."""
    runs = played(reader[1], "--afresh", "--compare", "spread,best-fit")["runs"]
    assert [run["policy"] for run in runs] == ["spread", "best-fit"]
    assert all(run["end"]["held_units"] for run in runs)
    assert where(runs[1])["big"] is not None


def test_ten_more_of_a_deployment(edge: str, reader: tuple[str, str]) -> None:
    """By its template as it is there now."""
    (run,) = played(reader[1], "--more", f"{edge}/app=10")["runs"]
    names = [name for name in where(run) if name != "big"]
    assert names == [f"app-more-0-{number}" for number in range(10)]
    # 8 units each: one in 10 units, three in 30, two in 20.
    assert (run["placed"], run["refused"]) == (6, 5)


@pytest.mark.parametrize("what", GETS.values(), ids=GETS)
def test_more_of_each_kind(edge: str, reader: tuple[str, str], what: str) -> None:
    """The documented rights are enough for all that ``--more`` takes."""
    (run,) = played(reader[1], "--more", what.replace("edge", edge))["runs"]
    assert sum("-more-0-0" in name for name in where(run)) == 1


def test_nothing_is_written(
    plane: ControlPlane, edge: str, reader: tuple[str, str]
) -> None:
    """By the API server's own log, and by every object's version."""
    before, mark = versions(plane.rest), plane.audit.mark()
    user, kubeconfig = reader
    words = ["--add", "gpu-1", "--drain", "gpu-2", "--afresh", "--room", "cards=1"]
    played(kubeconfig, *words, "--more", f"{edge}/app=3", "--compare", "frag,spread")
    calls = [call for call in plane.audit.calls(mark) if call.user == user]
    asked = {(call.verb, call.resource) for call in calls if call.resource}
    assert asked == {("list", "nodes"), ("list", "pods"), ("get", "deployments")}
    assert not plane.audit.writes(user, mark)
    assert versions(plane.rest) == before
