"""Whatever pods come: never an error of ours, never a patch that cannot be applied.

The same pod is made in a namespace that we are not asked about, too: what is taken
there may be refused here in our words only, and what we make of it must be taken.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from random import Random
from typing import TypeVar

import pytest

from tests.controlplane.bitfusionpods import (
    AMOUNT,
    CLIENT,
    GPU,
    GPU_MEMORY,
    LINE,
    MODE,
    PERCENT,
    STATUS,
)
from tests.controlplane.gate import FREE, Gate, asking, container, limits_of
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

MIB = f"{MEMORY}-mib"
One = TypeVar("One")

AMOUNTS: dict[str, Sequence[object]] = {
    CORE: (0, 1, 30, 50, 99, 100, 150, 200, -1, "1k", "500m", "1.5", "1e2", "9e30"),
    MEMORY: (0, 1, 4, 29, 58, "4000m", "8Gi", "1.5", "2e0", -4, "9223372036854775807"),
    MIB: (5000, 5120, 0, 1, "2.5k", "5Gi", "1.5", "9e9"),
    AMOUNT: (1, 1, 1, 1, 2, 0, -1, "1500m", "1k", "9e18"),
    PERCENT: (50, 30, 100, 1, 0, 101, -1, "50000m", "12.5", "1k"),
    GPU_MEMORY: ("8000M", "8Gi", "300M", "256Mi", 0, 8000, "0.5G", "1e9", "100m", "9E"),
    GPU: (50, 0),
    "cpu": ("10m", 1),
    "nvidia.com/gpu": (1,),
    "ephemeral-storage": ("1Gi",),
}
COMMANDS: Sequence[list[str] | None] = (
    None,
    [LINE],
    ["python", "a.py"],
    ["/bin/bash", "-c", "bitfusion run -n 1 -p 0.5 -- python a.py"],
    ["/opt/bin/bitfusion run -n 2 -m 8000 python a.py"],
    ["bitfusion", "run", "-n", "1", "-p", "0.25", "--", "python", "a b.py", "'"],
    ["bitfusion run"],
    ["bitfusion run -n x -p --"],
    ["echo 'half"],
    [" "],
    [""],
    ["$(NAME) \u00a0 \u4e2d\u6587 \n \\"],
)
ARGS: Sequence[list[str] | None] = (None, None, None, ["--fast", "a b"], [""])
ENV: Sequence[Json] = (
    {"name": "MINE", "value": "1"},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"},
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "LD_PRELOAD", "value": "/a.so"},
    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "EMPTY"},
)
ANNOTATIONS: dict[str, Sequence[str]] = {
    MODE: ("all", "all", "injection", "none", "Yes", "on", "", "maybe"),
    STATUS: ("injected", "other"),
    "bitfusion-client/filter": (
        "server.hostname=node-1",
        "server.hostname=a server.hostname=b",
        "server.addr=10.0.0.1",
        "device.name='Tesla P4'",
        "device.phy-memory>=8000",
        "server.has-rdma=true",
        "nonsense",
        "=",
    ),
    **{key: (value,) for key, value in CLIENT.items()},
    "baidu.com/vcuda-policy": ("spread", "best-fit", "tetris"),
    "baidu.com/vcuda-containers": ("apart", "asunder"),
    "baidu.com/vcuda-models": ("Tesla P4", "A100,V100", "", ",", "\u4e2d\u6587"),
    "baidu.com/vcuda-uuids": ("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7", "x", ""),
    "baidu.com/vcuda-~0/": ("x",),
    "a/b~c": ("~1 / ~0",),
}
NODE_SELECTORS: Sequence[Json] = ({"disk": "ssd"}, {"kubernetes.io/hostname": "node-1"})
COUNT = 450
THEIRS = "bitfusion.io/"
OURS = 'vcuda.baidu.com" denied the request: '


def tried(gate: Gate, number: int) -> str | AssertionError:
    """Give the outcome, or what was wrong with it: all of them are told."""
    try:
        return outcome(gate, number)
    except AssertionError as error:
        return error


def outcome(gate: Gate, number: int) -> str:
    """Say what became of a pod, having insisted that it may be so."""
    a_pod = random_pod(number)
    free_status, free = gate.at(FREE).post(a_pod)
    status, answer = gate.post(a_pod)
    said = f"pod {number}: {answer.get('message', '')}"
    assert status < 500, said
    if status == 201:
        sound(a_pod, answer)
        changed = answer["spec"] != free.get("spec")
        return "changed" if changed else "taken"
    if OURS in answer["message"]:
        assert "Traceback" not in said
        assert len(answer["message"].partition(OURS)[2].strip()) > 20, said
        return "denied"
    # Without us it is no pod either, and for no fault of our patch.
    assert free_status == status, f"{said}; alone: {free_status}"
    assert status in {400, 422}, said
    return "invalid"


def sound(before: Json, after: Json) -> None:
    """Insist on what holds of every pod that is taken."""
    name = before["metadata"]["name"]
    old = before["metadata"].get("annotations", {})
    new = after["metadata"].get("annotations", {})
    kept = {key: value for key, value in old.items() if key != STATUS}
    assert new.items() >= kept.items(), f"{name} has lost annotations"
    asks = list(extended(after))
    assert not any(MIB in each for each in asks), f"{name} asks in MiB"
    units = [each.get(MEMORY, "0").rstrip("mk") for each in asks]
    cores = [each[CORE] for each in asks if CORE in each]
    assert cores or not any(map(Decimal, units)), f"{name} asks no core"
    if new.get(STATUS) == "injected" and old.get(STATUS) != "injected":
        assert old[MODE].lower() not in ("none", ""), name
        theirs = {key for each in asks for key in each if key.startswith(THEIRS)}
        assert theirs == set(), f"{name} asks {theirs}"


def extended(a_pod: Json) -> Iterator[dict[str, str]]:
    """Give each container's limits of resources that are no node's own."""
    spec = a_pod["spec"]
    for a_container in (*spec["containers"], *spec.get("initContainers", ())):
        resources = a_container.get("resources", {})
        limits, requests = (
            {
                name: value
                for name, value in resources.get(part, {}).items()
                if "/" in name
            }
            for part in ("limits", "requests")
        )
        assert limits == requests, a_pod["metadata"]["name"]
        yield limits


def test_random_pods(gate: Gate) -> None:
    """Each kind of outcome comes about often, so that the dice are worth something."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: tried(gate, number), range(COUNT)))
    assert [each for each in found if isinstance(each, AssertionError)] == []
    counts = Counter(map(str, found))
    assert counts["changed"] >= 100, counts
    assert counts["taken"] >= 10, counts
    assert counts["denied"] >= 25, counts
    assert counts["invalid"] >= 1, counts


def test_a_thousand_containers(gate: Gate) -> None:
    """The API server's own budget for our conditions, and ours, are enough."""
    many = [container(name=f"c{number}") for number in range(999)]
    made = gate.admitted(asking(*many, container({MEMORY: 4}, "last")))
    assert limits_of(made, 999) == {MEMORY: "4", CORE: "1"}
    before = gate.reviews()
    gate.admitted(asking(*many))
    assert gate.reviews() == before


@pytest.mark.parametrize("size", [200_000, 2_900_000])
def test_large_pods(gate: Gate, size: int) -> None:
    """Up to what the API server takes at all, in one line of a script."""
    script = container({MEMORY: 4}, command=["sh", "-c", "#" * size])
    made = gate.admitted(asking(script))
    assert limits_of(made) == {MEMORY: "4", CORE: "1"}
    assert len(made["spec"]["containers"][0]["command"][2]) == size


def random_pod(number: int) -> Json:
    """Make the pod of this number."""
    dice = Random(number)
    metadata: Json = {"name": f"random-{number}"}
    if annotations := _annotations(dice):
        metadata["annotations"] = annotations
    spec: Json = {"containers": _containers(dice, "c", dice.randint(1, 3))}
    if dice.random() < 0.15:
        spec["initContainers"] = _containers(dice, "i", dice.randint(1, 2))
        if dice.random() < 0.5:
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if dice.random() < 0.2:
        spec["nodeSelector"] = dice.choice(NODE_SELECTORS)
    if dice.random() < 0.2:
        spec["affinity"] = {"nodeAffinity": _affinity(dice)}
    if dice.random() < 0.2:
        spec["volumes"] = [{"name": "mine", "emptyDir": {}}]
        mount = {"name": "mine", "mountPath": "/usr/bin/bitfusion"}
        spec["containers"][0]["volumeMounts"] = [mount]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _containers(dice: Random, letter: str, count: int) -> list[Json]:
    return [_container(dice, f"{letter}{number}") for number in range(count)]


def _container(dice: Random, name: str) -> Json:
    one: Json = {"name": name, "image": "local.test/pause:1"}
    limits = _asks(dice)
    if limits:
        one["resources"] = {"limits": limits}
        if dice.random() < 0.2:
            one["resources"]["requests"] = dict(_some(dice, list(limits.items())))
        if dice.random() < 0.05:
            one["resources"]["requests"] = _asks(dice)
    for key, choices in (("command", COMMANDS), ("args", ARGS)):
        if (words := dice.choice(choices)) is not None:
            one[key] = words
    if dice.random() < 0.1:
        one["env"] = _some(dice, ENV)
    return one


def _asks(dice: Random) -> Json:
    """What a container asks: mostly one kind of ours, right more often than not."""
    kind = dice.choice(
        [[MEMORY], [MEMORY, CORE], [MIB], [AMOUNT, PERCENT], [AMOUNT, GPU_MEMORY], []]
    )
    if dice.random() < 0.08:
        kind = _some(dice, list(AMOUNTS))
    found: Json = {}
    for name in kind:
        if dice.random() < 0.95:
            right = {AMOUNT: 1, PERCENT: 50, GPU_MEMORY: "8000M", CORE: 10, MEMORY: 4}
            right[MIB] = 5000
            chosen = dice.choice(AMOUNTS[name])
            found[name] = right.get(name, chosen) if dice.random() < 0.9 else chosen
    return found


def _annotations(dice: Random) -> dict[str, str]:
    found = {MODE: dice.choice(["all", "injection"])} if dice.random() < 0.7 else {}
    if dice.random() < 0.3:
        for key in _some(dice, list(ANNOTATIONS), most=3):
            found[key] = dice.choice(ANNOTATIONS[key])
    return found


def _affinity(dice: Random) -> Json:
    match = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    terms = [{"matchExpressions": [match]} for _ in range(dice.randint(1, 2))]
    if dice.random() < 0.5:
        preferred = {"weight": 1, "preference": terms[0]}
        return {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
    }


def _some(dice: Random, choices: Sequence[One], most: int = 4) -> list[One]:
    return dice.sample(choices, dice.randint(0, min(most, len(choices))))
