"""Which pod kubelet admits, and that no card is given away twice."""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.allocation.device_chooser import DeniedError
from deviceplugin.cards.devices import amounts_by_card
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, CardUUID, Placement, PodRequest
from gpushare.domain.placement import place
from gpushare.domain.policies import POLICIES
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.codec import read_pod_record, read_pod_ref
from gpushare.kube.errors import NotFound
from gpushare.kubelet.pods import ListedDevices, NodePod
from tests.builders import AT, card, event, placement, pod_json, share
from tests.deviceplugin.admission_fixture import AdmissionFixture, Shown, shaped, shapes
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    NodeFixture,
    found_card,
    visible,
)

CARDS = [card(i, units, uuid=UUIDS[i]) for i, units in enumerate((29, 12, 20))]
FIRST = POLICIES["first-fit"]

words = st.one_of(
    st.tuples(st.just("planned"), shapes()),
    st.tuples(st.just("planned"), shapes()),
    st.tuples(st.just("bare"), shapes()),
    st.tuples(st.just("admit"), st.integers(0, 9)),
    st.tuples(st.just("admit"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
)


class Burst:
    """Extender and kubelet of one node, word by word."""

    def __init__(self, chance: Random) -> None:
        self.fixture = AdmissionFixture(*CARDS, chance=chance)
        self.waiting: list[tuple[NodePod, Json]] = []
        self.running: list[tuple[NodePod, Json]] = []
        self.number = 0

    def named(self, body: Json) -> Json:
        """Each pod has a UID of its own; names come again."""
        self.number += 1
        own = {"name": f"p{self.number % 5}", "uid": f"uid-{self.number}"}
        return {**body, "metadata": body["metadata"] | own, "spec": dict(body["spec"])}

    def tell(self, word: str, body: Json | int) -> None:
        if isinstance(body, dict):
            self.add(self.named(body), planned=word == "planned")
        elif word == "admit" and self.waiting:
            pod, its = self.waiting.pop(body % len(self.waiting))
            self.runs(pod, its, self.fixture.admit(pod))
        elif word == "end" and self.running:
            self.fixture.end(*self.running.pop(body % len(self.running)))

    def add(self, body: Json, *, planned: bool) -> None:
        taken = {pod.name for pod, _ in self.waiting + self.running}
        record = read_pod_record(body)
        if (record.pod.namespace, record.pod.name) in taken:
            return
        assert isinstance(record.request, PodRequest)
        node = self.fixture.occupancy.charged(self.fixture.listed(), self.fixture.cards)
        found = place(record.request, node, FIRST)
        if planned and isinstance(found, Placement):
            self.waiting.append((self.fixture.bind(body, found), body))
        elif not planned:
            self.by_hand(self.fixture.bind(body), body, found)

    def by_hand(self, pod: NodePod, body: Json, found: object) -> None:
        asked = pod.record.request
        assert isinstance(asked, PodRequest)
        try:
            shown = self.fixture.admit(pod)
        except DeniedError:
            assert not isinstance(found, Placement) or len(asked.claims) > 1
            self.fixture.end(pod, body)
        else:
            assert isinstance(found, Placement)
            self.runs(pod, body, shown)

    def runs(self, pod: NodePod, body: Json, shown: Shown) -> None:
        self.running.append((pod, body))
        expected = self.fixture.occupancy.expected(pod)
        for container, cards in shown.items():
            assert expected is not None
            assert set(cards) == amounts_by_card(expected, container).keys()

    def check(self) -> None:
        node = self.fixture.occupancy.charged(self.fixture.listed(), self.fixture.cards)
        for known in CARDS:
            assert Amount(*node.charged.get(known.uuid, (0, 0))).fits(known.capacity)


@settings(max_examples=30)
@given(st.lists(words, max_size=25), st.randoms(use_true_random=False))
def test_no_card_is_over_placed(said: list[tuple[str, Json]], chance: Random) -> None:
    burst = Burst(chance)
    for word, what in said:
        burst.tell(word, what)
        burst.check()


SAMPLES = (
    ([(9, 100)], [], False),
    ([(5, 200)], [], False),
    ([(3, 4), (2, 1), (7, 0)], [], True),
    ([(4, 2)], [((6, 1), None), ((1, 1), "Always")], False),
    ([(8, 9), (1, 5)], [((2, 2), None)], False),
    ([(6, 3)], [], False),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path_factory.mktemp("h"), *map(found_card, range(3))) as made:
        yield made


def bound(host: NodeFixture, ledger: Ledger, body: Json) -> Json | None:
    """Bind a pod as the extender does; None where no card has room."""
    asked = read_pod_record(body).request
    assert isinstance(asked, PodRequest)
    found = ledger.reserve(asked, NODE, FIRST)
    if not isinstance(found, Placement):
        return None
    name = body["metadata"]["name"]
    del body["metadata"]["uid"], body["metadata"]["resourceVersion"]
    made = read_pod_ref(host.cluster.create(Kind.PODS, body))
    text = encode_placement(Placement(made, NODE, found.shares), AT)
    target = PodTarget(made.namespace, made.name, made.uid)
    host.cluster.bind(target, NODE, {names.PLACEMENT: text}, timeout_s=1)
    host.wait_seen(name)
    return host.pod(name)


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_over_kubelets_sockets(host: NodeFixture, seed: int) -> None:
    """Every container's visible cards are its placement's, and nobody else's in full.

    Pods are admitted in another order than bound, and some end in between.
    """
    chance, ledger = Random(seed), Ledger()
    ledger.set_cards(NODE, host.serving.parts.offer.cards.all)
    bodies = []
    for number in range(14):
        apps, first, apart = chance.choice(SAMPLES)
        bodies.append(shaped(f"s{seed}-{number}", apps, first, apart=apart))
    pods = [one for body in bodies if (one := bound(host, ledger, body))]
    chance.shuffle(pods)
    seen: set[CardUUID] = set()
    for pod in pods:
        placement = read_pod_record(pod).placement
        assert placement is not None
        for container, found in host.run(pod).items():
            if planned := amounts_by_card(placement, container):
                assert set(visible(found)) == planned.keys()
        assert host.actual(pod["metadata"]["name"]) is None
        seen.update(placement.cards())
        if chance.random() < 0.3:
            host.end_pod(pod["metadata"]["name"])
    assert len(seen) == 3
    assert host.events() == []
    for name in {pod["metadata"]["name"] for pod in pods}:
        with suppress(NotFound):
            host.end_pod(name)


M, C = names.MEMORY, names.CORE
UNITS = frozenset(f"9f12f917-m{number:04d}" for number in range(4))


def test_who_has_all_is_looked_at_again_when_it_lacks() -> None:
    """kubelet may have forgotten it, or it is a new pod under its name."""
    fixture = AdmissionFixture(card())
    pod = fixture.bind(pod_json("one", units=4, cores=1, node=NODE))
    finder = fixture.chooser._finder
    held = {"main": {C: frozenset({"9f12f917-c000"}), M: UNITS}}
    for _ in range(2):
        assert finder.find(ListedDevices({pod.name: held}), M, 4) is None
    found = finder.find(ListedDevices({pod.name: {"main": {}}}), M, 4)
    assert found is not None
    assert found.name == pod.name


@pytest.mark.parametrize(
    ("policy", "first"), [("spread", UUIDS[1]), ("best-fit", UUIDS[0])]
)
def test_containers_apart_move_if_their_card_lacks_room(
    policy: str, first: CardUUID
) -> None:
    """All by what was decided at the first; kubelet still holds a forgotten pod's."""
    cards = [card(i, units, uuid=UUIDS[i]) for i, units in enumerate((10, 20))]
    fixture = AdmissionFixture(*cards)
    gone = pod_json("gone", units=4, cores=1)
    fixture.admit(fixture.bind(gone, placement("gone", UUIDS[0], 4, 1)))
    fixture.pods.apply(event("DELETED", gone))
    shares = [
        share(UUIDS[0], 4, 60, container="c0"),
        share(UUIDS[0], 4, 40, container="c1"),
    ]
    body = shaped("two", [(4, 60), (4, 40)], apart=True)
    body["metadata"]["annotations"][names.POLICY] = policy
    shown = fixture.admit(fixture.bind(body, placement("two", shares=shares)))
    assert shown == {"c0": [first], "c1": [UUIDS[1]]}
