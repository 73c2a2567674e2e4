"""What the API server says, written into the ledger."""

from collections.abc import Iterator

import pytest

from gpushare.cache.pods import PodBook
from gpushare.domain.model import NodeName, Placement, PodUID
from gpushare.domain.policies import Choice
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Page
from gpushare.kube.codec import pod_record
from gpushare.kube.errors import Unavailable
from tests.builders import (
    AT,
    FIRST_FIT,
    bound_json,
    cards,
    container_json,
    event,
    ledger_of,
    left,
    page,
    placement,
    pod_json,
    ref,
    request,
)

N = NodeName("n")


class Office:
    """A ledger of one node of two cards, its book of pods, and a clock."""

    def __init__(self) -> None:
        self.ledger = ledger_of(*cards(29, 29))
        self.now = 0.0
        self.gone: list[PodUID] = []
        self.pods = PodBook(
            self.ledger, Choice(), on_gone=self.gone.append, clock=lambda: self.now
        )

    def hear(self, *pods: Json) -> None:
        for pod in pods:
            self.pods.apply(event("MODIFIED", pod))

    def relist(self, *pods: Json) -> None:
        self.pods.replace(iter([page(*pods[:1], token="t"), page(*pods[1:])]))

    def free(self, index: int = 0) -> int:
        return left(self.ledger.node(N), index).units


@pytest.fixture
def office() -> Office:
    return Office()


def half_a_list(*items: Json) -> Iterator[Page]:
    yield page(*items, token="more")
    raise Unavailable("gone dark")


def test_a_bound_pod_is_charged(office: Office) -> None:
    """By its placement, on its card."""
    office.hear(bound_json(placement("a", 1, 20)))
    assert (office.free(0), office.free(1)) == (29, 9)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_phase_frees(office: Office, phase: str) -> None:
    """Its containers have ended for good."""
    office.hear(bound_json(placement("a", 0, 20)))
    office.hear(bound_json(placement("a", 0, 20), phase=phase))
    assert office.free() == 29
    assert office.pods.records() == ()


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_any_other_phase_is_charged(office: Office, phase: str) -> None:
    """Also one that the node has not been heard of."""
    office.hear(bound_json(placement("a", 0, 20), phase=phase))
    assert office.free() == 9


def test_a_deletion_timestamp_frees_nothing(office: Office) -> None:
    """The containers still run; only the object's end counts."""
    office.hear(bound_json(placement("a", 0, 20), terminating=True))
    assert office.free() == 9
    office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    assert office.free() == 29


def test_deleted_twice_is_deleted_once(office: Office) -> None:
    """A watch may repeat itself."""
    for _ in range(2):
        office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    office.hear(bound_json(placement("a", 0, 20)))
    for _ in range(2):
        office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    assert office.free() == 29
    assert office.gone == [ref("a").uid]


@pytest.mark.parametrize("node", ["", "n"], ids=["not yet bound", "bound"])
def test_an_event_without_our_annotation_erases_no_reservation(
    office: Office, node: str
) -> None:
    """The watch may be behind our own bind, or somebody took the annotation off."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.hear(pod_json("a", units=20, node=node))
    assert office.free() == 9


def test_an_annotation_taken_off_erases_no_placement(office: Office) -> None:
    """The pod still uses the card."""
    office.hear(bound_json(placement("a", 0, 20)))
    office.hear(pod_json("a", units=20, node="n", phase="Running"))
    assert office.free() == 9


def test_the_actual_card_is_charged(office: Office) -> None:
    """And the planned one is free again."""
    office.hear(bound_json(placement("a", 0, 20)))
    actual = bound_json(placement("a", 1, 20), key=names.ACTUAL)
    planned = encode_placement(placement("a", 0, 20), AT)
    actual["metadata"]["annotations"][names.PLACEMENT] = planned
    office.hear(actual)
    assert (office.free(0), office.free(1)) == (29, 9)


def test_a_relist_drops_what_is_gone(office: Office) -> None:
    """And keeps what is there, on whichever page."""
    held = [bound_json(placement(name, 0, 5)) for name in "abc"]
    office.hear(*held)
    office.relist(held[0], held[2])
    assert office.free() == 19
    assert office.gone == [ref("b").uid]


def test_a_list_that_fails_drops_nothing(office: Office) -> None:
    """What its missing pages would have held is not gone."""
    office.hear(bound_json(placement("a", 0, 5)), bound_json(placement("b", 0, 5)))
    with pytest.raises(Unavailable):
        office.pods.replace(half_a_list(bound_json(placement("b", 0, 5))))
    assert office.free() == 19
    assert office.gone == []


def test_a_pod_that_turns_up_after_half_a_list_can_still_go(office: Office) -> None:
    """The next whole list is compared with all that was heard."""
    with pytest.raises(Unavailable):
        office.pods.replace(half_a_list(bound_json(placement("a", 0, 5))))
    office.relist()
    assert office.free() == 29


def test_a_pod_bound_without_a_placement_is_counted(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """The sign that kube-scheduler does not ask us any more."""
    office.hear(pod_json("a", units=4, node="n"), pod_json("b", node="n"))
    office.hear(pod_json("z", units=0, node="n"), pod_json("p", units=4))
    assert [one.pod.name for one in office.pods.without_placement()] == ["a"]
    assert [r.message for r in caplog.records] == ["pod bound without a placement"]
    office.pods.apply(event("DELETED", pod_json("a", units=4, node="n")))
    assert office.pods.without_placement() == ()


def test_a_forged_placement_is_none(office: Office) -> None:
    """A UID of another pod: counted as bound without us, and charged on every card."""
    forged = pod_json(
        "a",
        units=4,
        node="n",
        annotations={names.PLACEMENT: encode_placement(placement("other"), AT)},
    )
    office.hear(forged)
    assert (office.free(0), office.free(1)) == (25, 25)
    assert len(office.pods.without_placement()) == 1


def test_a_pod_made_again_under_its_name_is_another(office: Office) -> None:
    """The old one's end does not hide the new one."""
    old = pod_json("a", uid="uid-1", units=4)
    office.hear(old, pod_json("a", uid="uid-2", units=4))
    office.pods.apply(event("DELETED", old))
    found = office.pods.find("default", "a")
    assert found is not None
    assert found.pod.uid == "uid-2"


def test_only_pods_that_ask_for_cards_are_kept(office: Office) -> None:
    """There may be 100,000 others."""
    office.hear(pod_json("plain"), pod_json("gpu", units=4), pod_json("z", units=0))
    assert [one.pod.name for one in office.pods.records()] == ["gpu", "z"]
    assert office.pods.find("default", "plain") is None


def test_a_pod_that_is_not_understood_is_left_out_and_logged(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on."""
    broken = pod_json("a", units=4, node="n")
    broken["metadata"]["labels"] = []
    office.hear(broken, bound_json(placement("b", 0, 5)))
    assert office.free() == 24
    assert [r.message for r in caplog.records] == ["pod not understood"]
    assert "metadata.labels" in vars(caplog.records[0])["because"]


def test_a_placement_that_is_not_understood_is_counted_and_logged(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pod counts as bound without us."""
    broken = pod_json("a", units=4, node="n", annotations={names.PLACEMENT: "{"})
    office.hear(broken)
    assert [pod.pod.name for pod in office.pods.without_placement()] == ["a"]
    assert [r.message for r in caplog.records] == [
        "placement not understood",
        "pod bound without a placement",
    ]
    assert names.PLACEMENT in vars(caplog.records[0])["because"]


def test_a_broken_annotation_erases_no_placement(office: Office) -> None:
    """Nor does its pod's end leave the card charged."""
    office.hear(bound_json(placement("a", 0, 20)))
    broken = pod_json("a", units=20, node="n", annotations={names.ACTUAL: "{"})
    office.hear(broken)
    assert office.free() == 9
    broken["status"]["phase"] = "Succeeded"
    office.pods.apply(event("DELETED", broken))
    assert office.free() == 29


def test_a_placement_read_by_others_is_taken_unless_the_pod_has_ended(
    office: Office,
) -> None:
    """It would stay on the books for ever."""
    read = pod_record(bound_json(placement("a", 0, 5)))
    assert office.pods.settle(read)
    assert office.free() == 24
    office.pods.apply(event("DELETED", bound_json(placement("a", 0, 5))))
    assert not office.pods.settle(read)
    assert office.free() == 29


def test_a_holder_that_no_list_names_has_gone(office: Office) -> None:
    """Even one that was never on record."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.pods.replace(iter([page()]))
    assert office.free() == 29


def test_a_pod_bound_without_us_is_logged_when_it_happens(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """First seen Pending, as most pods are."""
    office.hear(pod_json("a", units=4))
    assert caplog.records == []
    office.hear(pod_json("a", units=4, node="n"))
    assert [r.message for r in caplog.records] == ["pod bound without a placement"]


def bare(name: str = "a", units: int = 20, **notes: Placement) -> Json:
    """A pod bound to n, with these placements: ``plan`` and ``actual``."""
    keys = {"plan": names.PLACEMENT, "actual": names.ACTUAL}
    texts = {keys[key]: encode_placement(one, AT) for key, one in notes.items()}
    return pod_json(name, units=units, node="n", annotations=texts)


def test_a_pod_bound_without_us_is_charged_on_every_card(office: Office) -> None:
    """Until the device plugin says where it came to be, or it ends."""
    office.hear(bare())
    assert (office.free(0), office.free(1)) == (9, 9)
    office.hear(bare(actual=placement("a", 1, 20)))
    assert (office.free(0), office.free(1)) == (29, 9)
    assert office.pods.without_placement() == ()
    office.hear(bare("b", 5))
    assert (office.free(0), office.free(1)) == (24, 4)
    office.pods.apply(event("DELETED", bare("b", 5)))
    assert (office.free(0), office.free(1)) == (29, 9)


@pytest.mark.parametrize("ends", ["DELETED", "Succeeded", "relist"])
def test_what_is_charged_everywhere_is_freed_everywhere(
    office: Office, ends: str
) -> None:
    """However the end is told."""
    office.hear(bare())
    if ends == "DELETED":
        office.pods.apply(event("DELETED", bare()))
    elif ends == "relist":
        office.relist()
    else:
        office.hear({**bare(), "status": {"phase": ends}})
    assert (office.free(0), office.free(1)) == (29, 29)
    assert office.ledger.holders() == frozenset()


def test_a_pod_without_placement_is_charged_after_a_restart(office: Office) -> None:
    """It is in the list, as it was in the watch."""
    office.relist(bare(), bound_json(placement("b", 1, 4)))
    assert (office.free(0), office.free(1)) == (9, 5)


def test_an_invalid_request_is_charged_nothing(office: Office) -> None:
    """The device plugin turns such a pod away; it is none that was missed either."""
    office.hear(pod_json("a", cores=150, units=4, node="n"))
    assert (office.free(0), office.free(1)) == (29, 29)
    assert office.pods.without_placement() == ()


def test_a_request_that_turns_invalid_frees_nothing(office: Office) -> None:
    """Users may change their own annotations."""
    office.hear(bare())
    odd = bare()
    odd["metadata"]["annotations"] = {names.CONTAINERS: "asunder"}
    office.hear(odd)
    assert (office.free(0), office.free(1)) == (9, 9)


TWO_CARDS = [container_json("a", 3, 100), container_json("b", 9, 80)]


@pytest.mark.parametrize(
    ("asks", "annotations", "free"),
    [
        pytest.param({"units": 20}, {names.CONTAINERS: "asunder"}, 9, id="containers"),
        pytest.param({"units": 20}, {names.UUIDS: ","}, 9, id="uuids"),
        pytest.param({"units": 20}, {names.MODELS: "a*b"}, 9, id="models"),
        pytest.param({"containers": TWO_CARDS}, None, 0, id="no-longer-apart"),
    ],
)
def test_a_bound_pod_is_charged_by_its_spec(
    office: Office, asks: Json, annotations: dict[str, str] | None, free: int
) -> None:
    """Whatever its user makes of its annotations; it is one that was missed, too."""
    office.relist(pod_json("a", node="n", annotations=annotations, **asks))
    assert (office.free(0), office.free(1)) == (free, free)
    assert [record.pod.name for record in office.pods.without_placement()] == ["a"]


def test_a_broken_request_makes_no_small_placement_believable(office: Office) -> None:
    """It charges less than the pod asks by its spec."""
    told = bound_json(placement("a", 1, 2))
    told["metadata"]["annotations"][names.CONTAINERS] = "asunder"
    told["spec"] = pod_json("a", units=20, node="n")["spec"]
    office.hear(told)
    assert (office.free(0), office.free(1)) == (9, 9)


def test_a_reservation_is_not_doubled_by_the_watch(office: Office) -> None:
    """Our own binding, seen before its annotation is; then given up, it is unknown."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.hear(bare())
    assert (office.free(0), office.free(1)) == (9, 29)
    office.ledger.cancel(ref("a").uid)
    assert (office.free(0), office.free(1)) == (9, 9)


def test_what_was_read_of_a_pod_bound_bare_charges_it(office: Office) -> None:
    """Also before the watch tells; it is no placement to be sure of."""
    assert not office.pods.settle(pod_record(bare()))
    assert (office.free(0), office.free(1)) == (9, 9)
    assert not office.pods.settle(pod_record(pod_json("b", units=4)))
    assert (office.free(0), office.free(1)) == (9, 9)
