"""Many pods at once: what each sees is what was decided, and no card is overbooked."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.cluster.manifests import EIGHT_P4, container, pod
from tests.cluster.seen import charged, planned, unschedulable
from tests.cluster.site import Site
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

PODS = 60
UNITS, CORES = 29, 100
"""Of each card."""
OURS = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-"
Room = tuple[int, int]


def burst(random: Random) -> list[Json]:
    """Pods of all sizes in no order, some of two containers: more than can run."""
    made = []
    for number in random.sample(range(PODS), PODS):
        units, cores = random.randint(1, 12), random.choice((1, 5, 10, 20, 40))
        several = [container("main", units, cores)]
        if number % 4 == 0:
            units = random.randint(1, 4)
            several.append(container("beside", units, 2))
        made.append(pod(f"burst-{number}", *several))
    return made


def pods(site: Site) -> list[Json]:
    found: list[Json] = site.get("pods", "-l", "test=pod")["items"]
    return found


def runs(one: Json) -> bool:
    return bool(one["status"]["phase"] == "Running")


def free(site: Site) -> list[Room]:
    """Give cores and units left on each card, from the pods' annotations alone."""
    cores, units = charged(site)
    uuids = [card.uuid for card in EIGHT_P4]
    return [(CORES - cores[uuid], UNITS - units[uuid]) for uuid in uuids]


def asked(one: Json) -> Room:
    limits = [each["resources"]["limits"] for each in one["spec"]["containers"]]
    cores = sum(int(limit[CORE]) for limit in limits)
    return cores, sum(int(limit[MEMORY]) for limit in limits)


def check_cards(site: Site, one: Json) -> None:
    name = one["metadata"]["name"]
    plan = planned(site, one)
    for each, (part,) in plan.items():
        assert site.visible(name, each) == [part.card], name
    given = [part for (part,) in plan.values()]
    assert len({part.card for part in given}) == 1, name
    assert (sum(p.cores for p in given), sum(p.units for p in given)) == asked(one)


def test_sixty_pods_on_eight_cards(site: Site) -> None:
    """Every container sees its pod's card; what waits had room on no card."""
    site.gpus["cp"].set_cards(EIGHT_P4)
    site.create(*burst(Random(1)))
    found = wait_until(
        lambda: pods(site),
        "each pod running or refused",
        240,
        accept=lambda all_: all(runs(one) or unschedulable(one) for one in all_),
        every_s=0.5,
    )
    assert len(found) == PODS
    running = [one for one in found if runs(one)]
    with ThreadPoolExecutor(3) as at_once:
        list(at_once.map(lambda one: check_cards(site, one), running))

    left = free(site)
    assert all(cores >= 0 and units >= 0 for cores, units in left), left
    waiting = [one for one in found if not runs(one)]
    assert waiting
    for one in waiting:
        assert unschedulable(one).startswith(OURS)
        cores, units = asked(one)
        assert not any(cores <= c and units <= u for c, u in left)
