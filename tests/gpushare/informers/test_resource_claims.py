"""ResourceClaims followed into the ledger: reserved, confirmed, freed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import CardUUID, NodeName, Placement, PodUID
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.pods import PodInformer
from gpushare.informers.resource_claims import UNCONFIRMED_S, ResourceClaimInformer
from gpushare.kube.cluster import Json, ListPage, WatchEvent
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    ResourceClaimUser,
    read_resource_claim,
)
from tests.builders import (
    FIRST_FIT,
    allocation_json,
    bound_json,
    card,
    cards,
    claim_json,
    placement,
    request,
)

N = NodeName("n")


@dataclass
class Site:
    """A informer over a ledger of one node, and its clock."""

    ledger: Ledger = field(default_factory=Ledger)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.pods = PodInformer(self.ledger, PolicyChoice())
        self.informer = ResourceClaimInformer(
            self.ledger, set_cards=self.pods.set_cards, clock=lambda: self.now
        )
        self.informer.set_cards(N, cards(20, 20))

    def seen(self, body: Json) -> None:
        self.informer.apply(WatchEvent("MODIFIED", body))

    def gone(self, body: Json) -> None:
        self.informer.apply(WatchEvent("DELETED", body))

    def listed(self, *bodies: Json) -> None:
        self.informer.replace(iter([ListPage(bodies, "")]))

    def units(self) -> dict[str, int]:
        """What is charged to each card."""
        stored = self.ledger.node(N)
        assert stored is not None
        return {uuid: units for uuid, (_, units) in stored.charged.items() if units}


@pytest.fixture
def site() -> Site:
    return Site()


def read(body: Json) -> ResourceClaim:
    stored = read_resource_claim(body)
    assert stored is not None
    return stored


def allocated(
    name: str = "c", device: str = "gpu-0", version: int = 2, **of: int
) -> Json:
    return claim_json(name, allocation_json(device, **of), version=version)


def reserve(site: Site, body: Json, version: int = 1) -> str:
    return site.informer.reserve(read(body), str(version))


def test_an_allocation_is_charged_until_it_goes(site: Site) -> None:
    """On its card; freed when the allocation is removed."""
    site.seen(allocated(units=8))
    assert site.units() == {"GPU-0": 8}
    site.seen(claim_json("c", version=3))
    assert site.units() == {}


def test_a_deleted_claim_is_freed(site: Site) -> None:
    """Whether it was allocated or only reserved."""
    site.seen(allocated("a"))
    assert not reserve(site, allocated("b"))
    site.gone(allocated("a"))
    site.gone(claim_json("b"))
    assert site.units() == {}


def test_the_pods_of_a_claim_are_those_of_the_newest_version(site: Site) -> None:
    """Also before it is allocated, since kube-scheduler writes both at once."""
    assert not reserve(site, claim_json("c", allocation_json(), pods=["web-1"]))
    assert site.informer.users() == {
        "uid-c": (ResourceClaimUser("web-1", PodUID("uid-web-1")),)
    }
    for version, pods in ((2, ["web-1", "web-2"]), (3, ["web-2"])):
        site.seen(claim_json("c", allocation_json(), version=version, pods=pods))
    assert site.informer.users() == {
        "uid-c": (ResourceClaimUser("web-2", PodUID("uid-web-2")),)
    }
    site.gone(claim_json("c"))
    assert site.informer.users() == {}


def test_claims_of_other_drivers_are_nothing(site: Site) -> None:
    """They have no card of ours."""
    body = allocated()
    body["status"]["allocation"]["devices"]["results"][0]["driver"] = "net.io"
    site.seen(body)
    assert site.ledger.resource_claims() == frozenset()


def test_a_list_replaces_what_was_known(site: Site) -> None:
    """Claims that it lacks are gone, those that it has stay."""
    for name in "ab":
        site.seen(allocated(name, units=3))
    site.listed(allocated("b", units=3), claim_json("x"))
    assert site.ledger.resource_claims() == {"claim/uid-b"}


def test_lists_of_pods_and_claims_leave_each_other_alone(site: Site) -> None:
    """A pod is no claim, and a claim no pod that has ended."""
    pod = bound_json(placement("p", 1, 4, 1))
    site.pods.replace(iter([ListPage((pod,), "")]))
    site.seen(allocated(units=8))
    assert not reserve(site, allocated("r", units=2))
    site.pods.replace(iter([ListPage((pod,), "")]))
    assert site.units() == {"GPU-0": 10, "GPU-1": 4}
    site.listed(allocated(units=8))
    assert site.units() == {"GPU-0": 8, "GPU-1": 4}


def test_a_reservation_is_confirmed_by_the_watch(site: Site) -> None:
    """Then it is one no more, and no age ends it."""
    body = allocated(units=8)
    assert not reserve(site, body)
    assert site.ledger.reservations() == {"claim/uid-c"}
    site.seen(body)
    assert site.ledger.reservations() == frozenset()
    site.now = UNCONFIRMED_S + 1
    assert site.informer.overdue() == ()
    assert site.units() == {"GPU-0": 8}


def test_the_same_question_again_changes_nothing(site: Site) -> None:
    """The API server may ask twice, with another share ID."""
    body = allocated(units=15)
    assert not reserve(site, body)
    body["status"]["allocation"]["devices"]["results"][0]["shareID"] = "other"
    assert not reserve(site, body)
    assert site.units() == {"GPU-0": 15}


def test_the_same_question_after_the_card_got_sick(site: Site) -> None:
    """A part that the claim still seems to have is no reason to give it again."""
    body = allocated(units=15)
    assert not reserve(site, body)
    site.informer.set_cards(N, (card(0, 20, healthy=False), card(1, 20)))
    assert reserve(site, body).startswith("card GPU-0 of node n is sick")
    site.informer.set_cards(N, cards(10, 20))
    site.seen(body)
    complaint = "card GPU-0 of node n has 10 units left, not 15"
    assert reserve(site, body) == site.informer.why_not(read(body)) == complaint


def test_a_reservation_counts_against_binds_and_they_against_it(site: Site) -> None:
    """One ledger for both."""
    assert not reserve(site, allocated(units=15))
    bound = site.ledger.reserve(request("pod", 10, 1), N, FIRST_FIT)
    assert isinstance(bound, Placement)
    assert bound.cards() == ("GPU-1",)
    assert "10 units left" in reserve(site, allocated("d", "gpu-1", units=11))


def test_news_from_before_a_reservation_leaves_it(site: Site) -> None:
    """The watch may be behind the review."""
    assert not reserve(site, allocated(units=8), version=5)
    site.seen(claim_json("c", version=4))
    site.seen(claim_json("c", version=5))
    assert site.units() == {"GPU-0": 8}


def test_news_from_after_a_reservation_frees_it(site: Site) -> None:
    """The write was for an older version, so the API server refuses it."""
    assert not reserve(site, allocated(units=8), version=5)
    site.seen(claim_json("c", version=6))
    assert site.units() == {}


def test_two_answers_to_one_claim_both_count_until_one_is_seen(site: Site) -> None:
    """kube-scheduler tries again elsewhere, and the first write may still arrive."""
    assert not reserve(site, allocated(units=8, device="gpu-0"))
    assert not reserve(site, allocated(units=8, device="gpu-1"))
    assert site.units() == {"GPU-0": 8, "GPU-1": 8}
    site.seen(allocated(units=8, device="gpu-0"))
    assert site.units() == {"GPU-0": 8}
    site.gone(allocated())
    assert site.units() == {}


def test_the_second_answer_gets_the_uid_of_the_claim_once_it_is_stored(
    site: Site,
) -> None:
    """What ``/snapshot`` shows is found by the UID that the API server knows."""
    assert not reserve(site, allocated(units=8, device="gpu-0"))
    assert not reserve(site, allocated(units=8, device="gpu-1"))
    site.seen(allocated(units=8, device="gpu-1"))
    assert site.units() == {"GPU-1": 8}
    assert site.ledger.resource_claims() == {"claim/uid-c"}
    site.gone(allocated())
    assert site.units() == {}


def test_allocated_anew_before_the_watch_tells_of_the_end(site: Site) -> None:
    """The old allocation ends, the new reservation stays."""
    site.seen(allocated(units=8, version=2))
    assert not reserve(site, allocated(units=8), version=3)
    site.seen(claim_json("c", version=3))
    assert site.units() == {"GPU-0": 8}
    site.seen(allocated(units=8, version=4))
    assert site.units() == {"GPU-0": 8}


def test_a_reservation_is_given_up_by_age(site: Site) -> None:
    """Only once its write can take effect no more, and the API server has no such."""
    body = allocated(units=8)
    assert not reserve(site, body)
    site.now = UNCONFIRMED_S - 1
    assert site.informer.overdue() == ()
    site.now = UNCONFIRMED_S + 1
    (late,) = site.informer.overdue()
    site.informer.settle(late, claim_json("c", version=1))
    assert site.units() == {}


@pytest.mark.parametrize("version", [1, 2])
def test_a_reservation_that_took_effect_unseen_stays(site: Site, version: int) -> None:
    """Age alone frees nothing that is allocated."""
    assert not reserve(site, allocated(units=8))
    site.now = UNCONFIRMED_S + 1
    (late,) = site.informer.overdue()
    site.informer.settle(late, allocated(units=8, version=version))
    assert site.units() == {"GPU-0": 8}
    assert site.informer.overdue() == ()


def test_news_from_before_a_read_frees_nothing(site: Site) -> None:
    """The watch may be behind the read that settled a late reservation."""
    assert not reserve(site, allocated(units=8), version=2)
    site.now = UNCONFIRMED_S + 1
    site.informer.settle(site.informer.overdue()[0], allocated(units=8, version=3))
    site.seen(claim_json("c", version=2))
    assert site.units() == {"GPU-0": 8}
    site.seen(claim_json("c", version=4))
    assert site.units() == {}


def test_a_list_from_before_a_read_frees_nothing(site: Site) -> None:
    """A long list is applied page by page, and a claim may be read meanwhile."""
    assert not reserve(site, allocated(units=8), version=2)
    site.now = UNCONFIRMED_S + 1

    def pages() -> Iterator[ListPage]:
        site.informer.settle(site.informer.overdue()[0], allocated(units=8, version=3))
        yield ListPage((claim_json("c", version=2),), "")

    site.informer.replace(pages())
    assert site.units() == {"GPU-0": 8}
    site.listed(claim_json("c", version=2))
    assert site.units() == {}


def test_a_read_that_the_watch_has_overtaken_changes_nothing(site: Site) -> None:
    """The API server answered, and before the answer was used the watch told more."""
    assert not reserve(site, allocated(units=8))
    site.now = UNCONFIRMED_S + 1
    (late,) = site.informer.overdue()
    site.seen(allocated(units=8, version=2))
    site.gone(allocated(units=8, version=3))
    site.informer.settle(late, allocated(units=8, version=2))
    assert site.units() == {}

    assert not reserve(site, claim_json("d", allocation_json(units=8), version=4), 4)
    site.now += UNCONFIRMED_S + 1
    (late,) = site.informer.overdue()
    site.seen(claim_json("d", allocation_json("gpu-1", units=8), version=5))
    site.informer.settle(late, claim_json("d", version=4))
    assert site.units() == {"GPU-1": 8}


def test_a_list_counts_whatever_its_version(site: Site) -> None:
    """After a restore from a backup the versions begin again."""
    site.seen(allocated(units=8, version=9))
    site.listed(claim_json("c", version=3))
    assert site.units() == {}


@pytest.mark.parametrize("stored", [None, {"metadata": {"uid": "another"}}])
def test_a_late_reservation_of_a_claim_that_is_gone(site: Site, stored: Json) -> None:
    """Another claim of the name is not it."""
    assert not reserve(site, allocated(units=8))
    site.now = UNCONFIRMED_S + 1
    site.informer.settle(site.informer.overdue()[0], stored)
    assert site.units() == {}


def test_a_claim_that_is_deleted_under_its_pods_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the usual end, of which the allocation is taken off before.

    How a claim ended that a list does not have, nobody knows.
    """
    used = claim_json("c", allocation_json(), pods=["web-1"])
    for claim in (claim_json("a"), claim_json("b", allocation_json())):
        site.seen(claim)
        site.gone(claim)
    site.seen(used)
    site.listed()
    assert not caplog.text
    for found_by in (site.seen, site.listed):
        caplog.clear()
        found_by(used)
        site.gone(used)
    (record,) = caplog.records
    assert "claim deleted while pods use it" in record.message
    assert record.__dict__["pods"] == "web-1"


def test_a_claim_that_is_deleted_gets_nothing(site: Site) -> None:
    """Its review was under way; until a restore from a backup brings it back."""
    site.gone(claim_json("c"))
    assert reserve(site, allocated()) == "claim default/c is deleted"
    site.listed(claim_json("c", version=1))
    assert not reserve(site, allocated())


def made_up(name: str, uid: str, device: str = "gpu-0") -> Json:
    """What a process of the control-plane host may send instead of an API server."""
    body = allocated(name, device)
    body["metadata"]["uid"] = uid
    return body


def give_up_late(site: Site, **there: Json) -> None:
    """Settle all that is late by the claims that are there, by their names."""
    site.now += UNCONFIRMED_S + 1
    for late in site.informer.overdue():
        site.informer.settle(late, there.get(late.name))


def test_a_made_up_claim_with_the_uid_of_another(site: Site) -> None:
    """That there is no claim of its name says nothing of the real one."""
    assert not reserve(site, made_up("nope", "uid-c", "gpu-1"), version=10**9)
    assert not reserve(site, allocated(units=15))
    site.seen(body := allocated(units=15))
    give_up_late(site, c=body)
    assert site.units() == {"GPU-0": 15}
    site.gone(body)
    assert site.units() == {}


def test_a_made_up_claim_with_the_uid_of_a_second_answer(site: Site) -> None:
    """Both answers of the real one still count."""
    for device in ("gpu-0", "gpu-1"):
        assert not reserve(site, allocated(units=8, device=device))
    (second,) = site.ledger.resource_claims() - {"claim/uid-c"}
    uid = second.removeprefix("claim/")
    assert "has another part" in reserve(site, made_up("nope", uid))
    assert site.units() == {"GPU-0": 8, "GPU-1": 8}


def test_a_claim_seen_before_its_node(site: Site) -> None:
    """It is charged on its card when the node's cards come."""
    site.seen(claim_json("m", allocation_json("gpu-7", units=5, node="m")))
    site.informer.set_cards(NodeName("m"), (card(7, 20),))
    stored = site.ledger.node(NodeName("m"))
    assert stored is not None
    assert stored.free[CardUUID("GPU-7")].units == 15


def test_a_device_without_a_card_is_kept_and_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """It is none of the cards that are there, so none of them is charged."""
    site.seen(allocated(device="gpu-9", units=5))
    assert site.units() == {"gpu-9": 5}
    assert "devices that the node does not have" in caplog.text


def test_a_claim_stays_on_a_card_that_is_lost(site: Site) -> None:
    """And is on it again when the card is back."""
    site.seen(allocated(units=5))
    site.informer.set_cards(N, ())
    site.informer.set_cards(N, cards(20, 20))
    assert site.units() == {"GPU-0": 5}


def test_a_reservation_stays_one_when_its_card_is_found_again(site: Site) -> None:
    """Re-reading the node's cards confirms nothing."""
    assert not reserve(site, allocated(units=5))
    site.informer.set_cards(N, cards(20, 20, 20))
    assert site.ledger.reservations() == {"claim/uid-c"}


def test_a_claim_that_is_not_understood(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """What it held stays, the log says once what is wrong, and its end frees it."""
    site.seen(allocated(units=5))
    broken = allocated(units=5, version=3)
    del broken["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]
    site.seen(broken)
    site.seen(broken)
    assert site.units() == {"GPU-0": 5}
    assert caplog.text.count("claim not understood") == 1
    assert list(site.informer.broken()) == ["uid-c"]
    site.gone(broken)
    assert site.units() == {}
    assert site.informer.broken() == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["bind", "claim", "store", "watch", "relist", "drop", "age"]),
        st.integers(0, 4),
        st.integers(0, 1),
        st.integers(1, 12),
    ),
    max_size=40,
)


@dataclass
class World:
    """An API server that stores claims if the informer lets it, and its watch."""

    site: Site = field(default_factory=Site)
    version: int = 1
    stored: dict[str, Json] = field(default_factory=dict)
    under_way: list[tuple[str, Json]] = field(default_factory=list)
    news: list[WatchEvent] = field(default_factory=list)

    def write(self, name: str, body: Json) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.stored[name] = body
        self.news.append(WatchEvent("MODIFIED", body))

    def claim(self, name: str, device: str, units: int) -> None:
        if name not in self.stored:
            self.write(name, claim_json(name))
        now = self.stored[name]
        if now["status"]:
            return
        version = now["metadata"]["resourceVersion"]
        wanted = claim_json(
            name, allocation_json(device, units=units), version=int(version)
        )
        if not reserve(self.site, wanted, int(version)):
            self.under_way.append((name, wanted))

    def store(self, number: int) -> None:
        """Let a write that was reviewed arrive, if its version is still the claim's."""
        if not self.under_way:
            return
        name, body = self.under_way.pop(number % len(self.under_way))
        now = self.stored.get(name)
        version = body["metadata"]["resourceVersion"]
        if now and now["metadata"]["resourceVersion"] == version:
            self.write(name, body)

    def drop(self, name: str) -> None:
        if self.stored.get(name, {}).get("status"):
            self.write(name, claim_json(name))

    def watch(self) -> None:
        if self.news:
            self.site.informer.apply(self.news.pop(0))

    def relist(self) -> None:
        self.news.clear()
        self.site.listed(*self.stored.values())

    def age(self) -> None:
        """So long that no write is under way any more."""
        self.site.now += UNCONFIRMED_S + 1
        self.under_way.clear()
        for late in self.site.informer.overdue():
            self.site.informer.settle(late, self.stored.get(late.name))

    def on_cards(self) -> Iterator[tuple[str, int]]:
        """What the API server's claims, and the ledger's pods, have of each card."""
        for body in self.stored.values():
            if (stored := read_resource_claim(body)) is not None:
                yield stored.devices[0].name.upper(), stored.devices[0].amount.units
        node = self.site.ledger.node(N)
        assert node is not None
        for placed in node.placements.values():
            if not placed.pod.is_resource_claim:
                yield from ((s.card, s.amount.units) for s in placed.shares)


@settings(max_examples=300)
@given(STEPS)
def test_no_card_is_ever_above_its_units(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Binds and claims in any order, and news that come late: 20 units are enough."""
    world = World()
    for step, number, device, units in steps:
        name = f"c{number}"
        match step:
            case "bind":
                pending = request(f"p{number}", units, 1)
                world.site.ledger.reserve(pending, N, FIRST_FIT)
            case "claim":
                world.claim(name, f"gpu-{device}", units)
            case "store":
                world.store(number)
            case "drop":
                world.drop(name)
            case _:
                getattr(world, step)()
        sums = dict.fromkeys(("GPU-0", "GPU-1"), 0)
        for uuid, placed in world.on_cards():
            sums[uuid] += placed
        assert max(sums.values()) <= 20


@settings(max_examples=100)
@given(STEPS)
def test_the_ledger_has_what_the_api_server_has_in_the_end(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Nothing leaks: once all news has come and all writes have ended they agree."""
    world = World()
    for step, number, device, units in steps:
        if step == "claim":
            world.claim(f"c{number}", f"gpu-{device}", units)
        elif step == "store":
            world.store(number)
        elif step == "drop":
            world.drop(f"c{number}")
        elif step != "bind":
            getattr(world, step)()
    while world.news:
        world.watch()
    world.age()
    again = Site()
    again.listed(*world.stored.values())
    assert world.site.units() == again.units()
    assert world.site.ledger.resource_claims() == again.ledger.resource_claims()
    assert world.site.ledger.reservations() == frozenset()
