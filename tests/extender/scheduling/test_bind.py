"""bind: decide, write down, write once, settle."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from extender.scheduling.bind import Bound, Outcome, utc_now
from gpushare.domain.model import PodUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, Target
from gpushare.kube.errors import Unavailable
from tests.builders import AT, pod_json
from tests.extender.stand_ins import House

NO_MEMORY = "Insufficient baidu.com/vcuda-memory on one card"


def annotation(house: House, name: str = "pod") -> str | None:
    notes = house.cluster.pod(name)["metadata"].get("annotations") or {}
    found: str | None = notes.get(names.PLACEMENT)
    return found


def uid(pod: Json) -> PodUID:
    return PodUID(pod["metadata"]["uid"])


def test_one_write_binds_and_records() -> None:
    """The annotation is what the ledger has; no read and no second write."""
    house = House()
    pod = house.create(units=20, cores=5)
    assert house.bind(pod) == Bound(Outcome.BOUND)
    assert (house.cluster.writes, house.cluster.reads) == (1, 0)
    assert house.node_of("pod") == "n"
    placement = house.ledger.placement(uid(pod))
    assert placement is not None
    assert annotation(house) == encode_placement(placement, AT)
    assert house.free().units == 9


def test_the_time_is_written_as_the_api_server_writes_it() -> None:
    """UTC, in milliseconds, with a Z."""
    assert utc_now()[10] == "T"
    assert utc_now().endswith("Z")
    assert len(utc_now()) == len("2026-01-02T03:04:05.678Z")


def test_a_replayed_bind_succeeds_and_changes_nothing() -> None:
    """Before the watch has brought the first one, and after."""
    house = House()
    pod = house.create(units=20)
    house.bind(pod)
    before = house.cluster.pod("pod")
    assert house.bind(pod) == Bound(Outcome.ALREADY)
    house.see()
    assert house.bind(pod) == Bound(Outcome.ALREADY)
    assert house.cluster.pod("pod") == before
    assert (house.cluster.writes, house.cluster.reads) == (1, 1)
    assert house.free().units == 9


def refused(house: House, pod: Json, node: str = "n", *, other_uid: str = "") -> str:
    bound = house.bind(pod, node, uid=other_uid, judged=False)
    assert bound.outcome is Outcome.REFUSED
    assert house.cluster.writes == 0
    assert not house.ledger.reservations()
    return bound.error


def test_a_pod_of_another_uid_is_refused() -> None:
    """It was deleted and made again under its name."""
    house = House()
    pod = house.create(units=4)
    words = f"pod default/pod was created again; its UID is now {uid(pod)}"
    assert refused(house, pod, other_uid="other") == words


def test_a_pod_that_is_gone_is_refused() -> None:
    """By its name, in words."""
    assert refused(House(), pod_json(units=4)) == "pod default/pod is gone"


def test_a_pod_that_goes_before_the_watch_says_so_is_not_bound() -> None:
    """The API server says so, and the room is free again."""
    house = House()
    pod = house.create(units=20)
    house.cluster.delete(Kind.PODS, "default", "pod")
    assert house.bind(pod).outcome is Outcome.FAILED
    assert house.free().units == 29


def test_an_unknown_node_is_refused() -> None:
    """The API server would bind to it without a word (contracts 1.5)."""
    house = House()
    words = "there is no node nowhere"
    assert refused(house, house.create(units=4), "nowhere") == words


def test_a_pod_that_is_bound_elsewhere_is_refused() -> None:
    """Whoever did it."""
    house = House(n=(29,), m=(29,))
    pod = house.create(units=4)
    house.cluster.bind(Target("default", "pod", uid(pod)), "m", {})
    house.see()
    house.cluster.writes = 0
    words = "pod default/pod is already bound to node m"
    assert refused(house, pod) == words


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"cores": 150}, "Invalid vcuda request: 150 cores"),
        ({"units": 4, "annotations": {names.POLICY: "x"}}, 'no policy "x"'),
    ],
    ids=["request", "policy"],
)
def test_an_invalid_request_is_refused(how: dict[str, Any], words: str) -> None:
    """Filter would have said so; bind trusts nobody."""
    house = House()
    assert words in refused(house, house.create(**how))


def test_a_pod_that_cannot_be_read_is_not_bound() -> None:
    """The book lags behind and the API server does not answer."""
    house = House()
    pod = house.create(seen=False, units=4)
    house.cluster.on_get = [Unavailable("...")]
    assert house.bind(pod, judged=False).outcome is Outcome.FAILED
    assert house.cluster.writes == 0


def wishing(house: House, *uuids: str) -> Json:
    """Make a pod whose list is changed to each of these; the book has the first."""
    first, *others = ({names.UUIDS: uuid} for uuid in uuids)
    pod = house.create(units=20, annotations=first)
    for notes in others:
        house.cluster.annotate(Kind.PODS, "default", "pod", notes)
    return pod


@pytest.mark.parametrize("judged", [True, False])
def test_the_book_of_pods_may_lag_behind(*, judged: bool) -> None:
    """What counts is what filter judged, or else what the API server holds by now."""
    house = House(n=(29, 29))
    wishing(house, "GPU-00000000", "GPU-1")
    bound = house.bind(house.cluster.pod("pod"), judged=judged)
    assert bound == Bound(Outcome.BOUND)
    assert [house.free(index=index).units for index in (0, 1)] == [29, 9]
    assert house.cluster.reads == (0 if judged else 1)


def test_what_filter_judged_counts_for_as_long_as_its_bind_is_awaited() -> None:
    """Later on somebody else may have come in between, so the pod is read."""
    house = House(n=(29, 29))
    pod = wishing(house, "GPU-00000000", "GPU-1")
    house.filter(house.cluster.pod("pod"))
    house.clock.now = 5.0
    assert house.bind(pod, judged=False) == Bound(Outcome.BOUND)
    assert (house.free(index=1).units, house.cluster.reads) == (9, 1)


@pytest.mark.parametrize("ours", [{}, {"units": 0}], ids=["nothing", "zero"])
def test_a_pod_that_asks_zero_is_bound_plainly(ours: dict[str, Any]) -> None:
    """Without an annotation, to any node, and again without harm."""
    house = House(n=(29,))
    pod = house.create(**ours)
    assert house.bind(pod) == Bound(Outcome.BOUND)
    assert annotation(house) is None
    assert house.ledger.placement(uid(pod)) is None
    assert house.bind(pod).error == ""


def test_a_lost_race_for_the_room_is_a_conflict() -> None:
    """Filter's yes was not a promise; the words are those of the refusal."""
    house = House()
    first, second = house.create("a", units=20), house.create("b", units=20)
    house.bind(first)
    assert house.bind(second) == Bound(Outcome.CONFLICT, NO_MEMORY)
    assert house.cluster.writes == 1


@pytest.mark.parametrize("_round", range(10))
def test_two_binds_for_the_last_room_one_wins(_round: int) -> None:
    """Whichever thread comes first."""
    house = House()
    pods = [house.create(name, units=20) for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        found = sorted(bound.outcome for bound in threads.map(house.bind, pods))
    assert found == [Outcome.BOUND, Outcome.CONFLICT]
    assert sorted(house.node_of(name) for name in "ab") == ["", "n"]


@pytest.mark.parametrize("_round", range(10))
def test_two_binds_of_one_pod_both_succeed(_round: int) -> None:
    """With one placement."""
    house = House(n=(29, 29))
    pod = house.create(units=20)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(house.bind, [pod, pod]))
    assert [bound.error for bound in found] == ["", ""]
    assert [house.free(index=index).units for index in (0, 1)] == [9, 29]


def test_what_was_bound_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One event with its facts: card, units, cores, policy, time."""
    house = House()
    with caplog.at_level(logging.INFO):
        house.bind(house.create(units=20, cores=5))
    (record,) = [each for each in caplog.records if each.message == "bound"]
    facts = vars(record)
    assert (facts["card"], facts["units"], facts["cores"]) == ("GPU-0", 20, 5)
    assert facts["policy"] == "first-fit"
    assert facts["took_ms"] >= 0
