"""The node's pods as owners of processes and holders of cards."""

from collections.abc import Iterator

import pytest

from deviceplugin.exporter.owners import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    NO_POD,
    Holding,
    Owner,
    tenant,
)
from deviceplugin.exporter.run import Tenants
from gpushare.domain.model import Amount
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Page
from gpushare.kube.errors import Unavailable
from tests.builders import AT as WRITTEN
from tests.builders import (
    bound_json,
    container_json,
    event,
    page,
    placement,
    pod_json,
)
from tests.deviceplugin.house import NODE
from tests.deviceplugin.scene import A, B, cid, held, owner, tenancy, with_ids


def names_of(tenants: Tenants) -> list[str]:
    current = tenants.current()
    assert current is not None
    return [one.name[1] for one in current.tenants]


def test_nothing_is_known_before_the_first_list() -> None:
    """Not even that there are no pods; a list of none says so."""
    tenants = Tenants()
    tenants.apply(event("ADDED", held("early")))
    assert tenants.current() is None
    tenants.replace(iter([page()]))
    assert names_of(tenants) == []


def test_a_list_replaces_all() -> None:
    """Over its pages; who is not in it has gone."""
    tenants = Tenants()
    tenants.replace(iter([page(held("b")), page(held("a"))]))
    assert names_of(tenants) == ["a", "b"]
    tenants.replace(iter([page(held("c"))]))
    assert names_of(tenants) == ["c"]


def test_a_list_that_breaks_off_takes_nobody_away() -> None:
    """What was known stays, and the same object of it."""
    tenants = Tenants()
    tenants.replace(iter([page(held("a"))]))
    before = tenants.current()

    def pages() -> Iterator[Page]:
        yield page(held("b"))
        raise Unavailable("gone in the middle")

    with pytest.raises(Unavailable):
        tenants.replace(pages())
    assert tenants.current() is before


def test_changes_are_taken_over() -> None:
    """Another object after each, the same one between them."""
    tenants = Tenants()
    tenants.replace(iter([page(held("a"))]))
    first = tenants.current()
    assert tenants.current() is first
    tenants.apply(event("ADDED", held("b")))
    assert tenants.current() is not first
    assert names_of(tenants) == ["a", "b"]
    tenants.apply(event("DELETED", held("a")))
    assert names_of(tenants) == ["b"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_ends_with_its_phase(phase: str) -> None:
    """Its object may stay for days."""
    tenants = Tenants()
    tenants.replace(iter([page(held("a"))]))
    ended = held("a")
    ended["status"]["phase"] = phase
    tenants.apply(event("MODIFIED", ended))
    assert names_of(tenants) == []


def test_a_pod_that_cannot_be_read_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others are there; the log names it."""
    broken = held("b")
    broken["spec"] = {"containers": 5}
    tenants = Tenants()
    tenants.replace(iter([page(broken, held("a"))]))
    assert names_of(tenants) == ["a"]
    assert caplog.messages == ["pod not understood"]


def test_a_process_is_found_by_pod_and_container() -> None:
    """By the UID in its cgroup, in any spelling, and by the runtime's id."""
    uid = "0A6CB8DB-1234-4bb8-8d9d-8dc7fd6cddf7"
    pod = with_ids(pod_json("a", uid=uid, units=1, node=NODE))
    all_ = tenancy(pod, held("b"))
    for text in (uid, uid.lower(), uid.lower().replace("-", "_")):
        found = all_.owner_pod(Owner(text, cid("a/main")))
        assert found is not None
        assert found.name == ("default", "a")
        assert found.container_of(owner("a")) == "main"
    assert all_.owner_pod(Owner("uid-nobody", cid("a/main"))) is None
    assert all_.owner_pod(NO_POD) is None


def test_containers_of_all_kinds_have_names() -> None:
    """Init and ephemeral ones too, whatever the runtime."""
    pod = with_ids(
        pod_json(
            "a",
            containers=[container_json("main", 1)],
            init=[container_json("first", 1)],
            node=NODE,
        )
    )
    pod["status"]["ephemeralContainerStatuses"] = [
        {"name": "debug", "containerID": f"cri-o://{cid('debug')}"}
    ]
    pod["status"]["containerStatuses"][0]["containerID"] = f"docker://{cid('x')}"
    found = tenant(pod)
    assert found.container_of(Owner("", cid("x"))) == "main"
    assert found.container_of(Owner("", cid("a/first"))) == "first"
    assert found.container_of(Owner("", cid("debug"))) == "debug"


def test_an_id_that_was_not_told_yet() -> None:
    """Is the one container's that asks and has none; else nobody's we know."""
    unknown = Owner("uid-a", cid("new"))
    assert tenant(held("a", running=False)).container_of(unknown) == "main"
    two = held("a", containers={"x": (1, 0), "y": (1, 0)}, running=False)
    assert tenant(two).container_of(unknown) == ""
    both = pod_json(
        "a",
        containers=[container_json("main", 1)],
        init=[container_json("first", 1)],
        node=NODE,
    )
    assert tenant(both).container_of(unknown) == ""


def test_an_id_that_is_new_after_a_restart() -> None:
    """Until kubelet tells it, it is the only one's that could have been restarted."""
    unknown = Owner("uid-a", cid("new"))
    assert tenant(held("a")).container_of(unknown) == "main"
    two = held("a", containers={"x": (1, 0), "y": (1, 0)})
    assert tenant(two).container_of(unknown) == ""
    first, main = two["spec"]["containers"]
    two["spec"] |= {"initContainers": [first], "containers": [main]}
    two = with_ids(two)
    two["status"]["initContainerStatuses"][0]["state"] = {"terminated": {}}
    assert tenant(two).container_of(unknown) == "y"
    never_asked = with_ids(pod_json("a", node=NODE))
    assert tenant(never_asked).container_of(unknown) == "main"


def test_a_static_pod_goes_by_its_hash() -> None:
    """Its cgroup has kubelet's name for it, and the API server knows another."""
    hashed = "0123456789abcdef0123456789abcdef"
    pod = held("a")
    notes = pod["metadata"]["annotations"]
    notes |= {CONFIG_HASH: hashed, CONFIG_MIRROR: hashed}
    all_ = tenancy(pod)
    found = all_.owner_pod(Owner(hashed, cid("a/main")))
    assert found is not None
    assert (found.uid, found.static) == ("uid-a", True)
    assert all_.find("uid-a") is found


@pytest.mark.parametrize("liar", ["0-first", "z-last"])
def test_a_false_mirror_claims_nobodys_processes(liar: str) -> None:
    """Whoever may annotate a pod could else take another's, and be spared for it."""
    pod = held(liar)
    notes = pod["metadata"]["annotations"]
    notes |= {CONFIG_HASH: "uid-a", CONFIG_MIRROR: "uid-a"}
    all_ = tenancy(held("a"), pod)
    for name in ("a", liar):
        found = all_.owner_pod(owner(name))
        assert found is not None
        assert found.name[1] == name


def test_the_hash_of_a_pod_that_is_no_mirror_counts_for_nothing() -> None:
    """Users may write annotations; none may claim another's processes by one."""
    pod = held("b")
    pod["metadata"]["annotations"][CONFIG_HASH] = "uid-a"
    all_ = tenancy(held("a"), pod)
    for name in ("a", "b"):
        found = all_.owner_pod(owner(name))
        assert found is not None
        assert found.name[1] == name


def test_what_containers_hold() -> None:
    """Each its own part of the share."""
    pod = held("a", containers={"x": (4, 10), "y": (2, 0)})
    assert list(tenant(pod).holdings()) == [
        Holding(A, "x", Amount(10, 4), exclusive=False),
        Holding(A, "y", Amount(0, 2), exclusive=False),
    ]


def test_a_share_is_held_before_anything_runs() -> None:
    """From the binding on, as the extender counts it."""
    found = tenant(held("a", running=False))
    assert [one.container for one in found.holdings()] == ["main"]


def test_who_holds_a_whole_card() -> None:
    """One container has all of it; of several each has what it asked."""
    alone = held("a", containers={"x": (0, 100)}, charged=(29, 100))
    assert list(tenant(alone).holdings()) == [
        Holding(A, "x", Amount(100, 29), exclusive=True)
    ]
    two = held("a", containers={"x": (4, 60), "y": (2, 40)}, charged=(29, 100))
    assert list(tenant(two).holdings()) == [
        Holding(A, "x", Amount(60, 4), exclusive=True),
        Holding(A, "y", Amount(40, 2), exclusive=True),
    ]


def test_an_init_container_holds_only_while_it_runs() -> None:
    """What it had, later ones have again; a sidecar stays."""
    pod = held("a", containers={"first": (8, 0), "side": (1, 0), "main": (4, 0)})
    first, side, main = pod["spec"]["containers"]
    side["restartPolicy"] = "Always"
    pod["spec"] |= {"initContainers": [first, side], "containers": [main]}
    now = tenant(with_ids(pod))
    assert [one.container for one in now.holdings()] == ["first", "side", "main"]
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {}}
    later = tenant(pod)
    assert [one.container for one in later.holdings()] == ["side", "main"]


def test_where_kubelet_chose_otherwise() -> None:
    """The actual placement is believed, and the pod has moved."""
    pod = held("a", on=A)
    assert not tenant(pod).moved
    actual = placement("a", B, 8, node=NODE)
    pod["metadata"]["annotations"][names.ACTUAL] = encode_placement(actual, WRITTEN)
    found = tenant(pod)
    assert found.moved
    assert [one.card for one in found.holdings()] == [B]


def test_a_pod_of_which_nobody_knows_the_cards() -> None:
    """It asks and has no placement that can be read; one that asks nothing is fine."""
    assert tenant(pod_json("a", units=1, node=NODE)).unplaced
    assert not tenant(pod_json("a", node=NODE)).unplaced
    assert not tenant(bound_json(placement("a", A, node=NODE))).unplaced


def _reads(pod: Json) -> tuple[str, ...]:
    return tuple(sorted(tenant(pod).running))


def test_what_runs_now() -> None:
    """By the containers' states."""
    pod = held("a", containers={"x": (1, 0), "y": (1, 0)})
    pod["status"]["containerStatuses"][1]["state"] = {"waiting": {}}
    assert _reads(pod) == ("x",)
