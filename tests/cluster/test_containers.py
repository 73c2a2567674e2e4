"""Pods of several containers: each sees the card that its pod's placement names."""

from tests.cluster.manifests import THREE_OF_4_GIB, container, pod
from tests.cluster.seen import (
    ALLOCATION,
    Planned,
    allocation,
    fails_inside,
    inside,
    planned,
    variables,
)
from tests.cluster.site import Site
from tests.nvml.driver import StubCard
from tests.testbed.rest import Json

MARK = "---"
SELF_REPORT = f"nvidia-smi -L; echo {MARK}; cat {ALLOCATION}; echo {MARK}; env"
"""For an init container, which nobody can ask any more: its log tells all."""
FIRST, SECOND = (card.uuid for card in THREE_OF_4_GIB[:2])


def of_three_kinds() -> Json:
    made = pod("three", container("app", 6, 20), container("other", 2, 30))
    made["spec"]["initContainers"] = [
        container("init", 4, 10, script=SELF_REPORT),
        container("sidecar", 3, 5, restartPolicy="Always"),
    ]
    return made


def check_inside(site: Site, name: str, one: str, part: Planned) -> None:
    """Look at all that a container was told of its share."""
    assert site.visible(name, one) == [part.card]
    told = allocation(inside(site, name, "cat", ALLOCATION, container=one))
    check_told(part, told, variables(inside(site, name, "env", container=one)))


def check_told(
    part: Planned, told: dict[str, tuple[int, int, int]], env: dict[str, str]
) -> None:
    assert told == {part.card: (part.cores, part.units, part.units * 256)}
    assert env["VCUDA_CARDS"] == part.card
    assert env["VCUDA_MEMORY_LIMIT_MIB"] == str(part.units * 256)
    assert env["VCUDA_CORES"] == str(part.cores)


def card_lines(*cards: StubCard) -> list[str]:
    return [f"GPU {n}: {c.model} (UUID: {c.uuid})" for n, c in enumerate(cards)]


def test_init_container_sidecar_and_apps(site: Site) -> None:
    """All are on one card; each is told its own share of it, and cannot change that."""
    site.gpus["cp"].set_cards(THREE_OF_4_GIB)
    site.create(of_three_kinds())
    site.wait_running("three")
    plan = planned(site, site.get("pod", "three"))
    assert {name: (p.cores, p.units) for name, (p,) in plan.items()} == {
        "init": (10, 4),
        "sidecar": (5, 3),
        "app": (20, 6),
        "other": (30, 2),
    }
    assert {part.card for (part,) in plan.values()} == {FIRST}
    for name in ("sidecar", "app", "other"):
        check_inside(site, "three", name, plan[name][0])

    said = site.kubectl("logs", "three", "-c", "init").split(f"{MARK}\n")
    assert said[0].splitlines() == card_lines(THREE_OF_4_GIB[0])
    check_told(plan["init"][0], allocation(said[1]), variables(said[2]))

    for wish in (f"echo >> {ALLOCATION}", "touch /etc/vcuda/other"):
        words = fails_inside(site, "three", "sh", "-c", wish, container="app")
        assert "Read-only file system" in words


def test_containers_apart(site: Site) -> None:
    """With ``apart`` each container has a card of its own, and sees no other."""
    site.gpus["cp"].set_cards(THREE_OF_4_GIB)
    made = pod(
        "apart",
        container("left", 12, 40),
        container("right", 10, 30),
        container("neither"),
    )
    made["metadata"]["annotations"] = {"baidu.com/vcuda-containers": "apart"}
    site.create(made)
    site.wait_running("apart")
    plan = planned(site, site.get("pod", "apart"))
    assert plan == {
        "left": [Planned(FIRST, 40, 12)],
        "right": [Planned(SECOND, 30, 10)],
    }
    for name, (part,) in plan.items():
        check_inside(site, "apart", name, part)
    words = fails_inside(site, "apart", "nvidia-smi", "-L", container="neither")
    assert "not found" in words
