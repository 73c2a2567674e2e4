"""MIG instances as cards: one pod each, sizes that fit, and instances that go."""

from tests.cluster.manifests import container, pod
from tests.cluster.seen import card_of, refused_with
from tests.cluster.site import Site
from tests.nvml.driver import StubInstance, stub_card, stub_instance
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

MODEL = "NVIDIA A100-SXM4-40GB"
A100 = stub_card(0, model=MODEL, memory_mib=40960, mig=True)
SEVEN = [stub_instance(A100, place) for place in range(7)]
"""Of 4864 MiB: 19 units each."""
LARGE = stub_instance(
    A100, 0, gi=1, slices=3, memory_mib=19968, model=f"{MODEL} MIG 3g.20gb"
)
"""78 units."""
SMALL = stub_instance(
    A100, 1, gi=3, slices=2, memory_mib=9984, model=f"{MODEL} MIG 2g.10gb"
)
"""39 units."""
NOT_ON_ONE = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory on one"


def share(name: str, units: int | None, cores: int = 1, **more: Json) -> Json:
    return pod(name, container("main", units, cores), **more)


def test_seven_instances_and_seven_pods(site: Site) -> None:
    """Each pod sees one instance, no two the same; the eighth waits."""
    site.gpus["cp"].set_cards([A100], SEVEN)
    names = [f"p{number}" for number in range(7)]
    site.create(*(share(name, 12) for name in names))
    site.wait_running(*names)
    assert {card_of(site, name) for name in names} == {one.uuid for one in SEVEN}
    assert {one["parent"] for one in site.cards("cp")} == {A100.uuid}
    site.create(share("eighth", 12))
    refused_with(site, "eighth", NOT_ON_ONE)


def test_sizes(site: Site) -> None:
    """A pod that fits one of them only gets it; two whole cards are never two sizes.

    An instance that is made later is held back until a CDI specification has it; one
    that was destroyed is sick, and its pod stays charged.
    """
    gpus = site.gpus["cp"]
    gpus.set_cards([A100], [LARGE, SMALL])
    site.create(share("pair", None, 200))
    refused_with(site, "pair", "Insufficient untouched cards")
    site.create(share("large", 60), share("small", 30))
    site.wait_running("large", "small")
    assert card_of(site, "large") == LARGE.uuid
    assert card_of(site, "small") == SMALL.uuid

    new = stub_instance(A100, 4, gi=9)
    gpus.driver.set_instances(SMALL, new)
    wait_healthy(site, {SMALL: True, new: False, LARGE: False})
    assert site.placement(site.get("pod", "large")) is not None
    gpus.specify()
    wait_healthy(site, {SMALL: True, new: True, LARGE: False})
    # kube-scheduler counts what it holds against the units that are left.
    site.kubectl("delete", "pod", "large")
    site.create(share("late", 19))
    site.wait_running("late")
    assert card_of(site, "late") == new.uuid


def wait_healthy(site: Site, wanted: dict[StubInstance, bool]) -> None:
    by_uuid = {one.uuid: well for one, well in wanted.items()}
    wait_until(
        lambda: {one["uuid"]: one["healthy"] for one in site.cards("cp")},
        f"health {by_uuid}",
        accept=by_uuid.__eq__,
    )
