"""What kubectl shows of pods, and what their containers see."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.cluster.site import Site
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

ALLOCATION = "/etc/vcuda/allocation.json"


@dataclass(frozen=True)
class Planned:
    """What a pod's placement gives one container of one card."""

    card: str
    cores: int
    units: int


def planned(site: Site, pod: Json) -> dict[str, list[Planned]]:
    """Read a pod's placement: by container, in the order of its shares."""
    placement = site.placement(pod)
    assert placement is not None
    found: dict[str, list[Planned]] = {}
    for share in placement["shares"]:
        for name, (cores, units) in share["containers"].items():
            found.setdefault(name, []).append(Planned(share["card"], cores, units))
    return found


def card_of(site: Site, name: str, namespace: str = "default") -> str:
    """Give the one card of a pod: of its placement, and of what it sees."""
    pod = site.get("pod", name, "-n", namespace)
    ((found,),) = planned(site, pod).values()
    assert site.visible(name, namespace=namespace) == [found.card]
    return found.card


def inside(site: Site, pod: str, *command: str, container: str = "main") -> str:
    return site.kubectl("exec", pod, "-c", container, "--", *command)


def fails_inside(site: Site, pod: str, *command: str, container: str = "main") -> str:
    """Run a command in a container; it has to fail, and its words are given."""
    done = site.cluster.try_kubectl("exec", pod, "-c", container, "--", *command)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def variables(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs}


def statuses(site: Site, app: str) -> dict[str, str]:
    """Give the column STATUS of ``kubectl get pods``, by pod."""
    shown = site.kubectl("get", "pods", "-l", f"app={app}", "--no-headers")
    rows = [line.split() for line in shown.splitlines() if line.strip()]
    return {row[0]: row[2] for row in rows}


def refused_with(site: Site, name: str, words: str) -> None:
    shown = wait_until(
        lambda: site.kubectl("describe", "pod", name),
        f"refusal of {name}: {words}",
        60,
        accept=lambda text: "default-scheduler" in text and words in text,
    )
    assert "FailedScheduling" in shown
    assert site.phase(name) == "Pending"


def unschedulable(pod: Json) -> str:
    """Give the scheduler's words in a pod's status; empty where it has none."""
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    for condition in conditions:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def allocation(text: str) -> dict[str, tuple[int, int, int]]:
    """Read ``allocation.json``: cores, units and MiB by card."""
    return {
        card["uuid"]: (card["cores"], card["units"], card["memory_mib"])
        for card in json.loads(text)["cards"]
    }


def charged(site: Site) -> tuple[Counter[str], Counter[str]]:
    cores: Counter[str] = Counter()
    units: Counter[str] = Counter()
    for pod in site.get("pods", "-A")["items"]:
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        placement = site.placement(pod)
        for share in placement["shares"] if placement else ():
            cores[share["card"]] += share["cores"]
            units[share["card"]] += share["units"]
    return cores, units


def within_capacity(site: Site) -> bool:
    cores, units = charged(site)
    nodes = site.cluster.nodes
    cards = {card["uuid"]: card for node in nodes for card in site.cards(node)}
    return all(
        cores[uuid] <= 100 and units[uuid] <= cards[uuid]["units"]
        for uuid in {*cores, *units}
    )
