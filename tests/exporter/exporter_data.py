"""A node as the exporter knows it: pods, cards and processes, made by hand."""

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from exporter.held import ContainerLimit, NodeLimits, of_container
from exporter.owners.owner_pods import Owner, OwnerPods, read_owner_pod
from exporter.owners.regions import place
from exporter.snapshot import ProcessRound, Round, TelemetrySnapshot, XidTally
from exporter.telemetry.base import CardAnswer, ProcessesAnswer, ProcessUse, SmSource
from exporter.telemetry.fields import FIELDS, GROUPS, PROCESSES, Field
from exporter.usage import ContainerUse, Usage
from gpushare.cards.source import FoundCard, FoundCards
from gpushare.domain.model import Amount, CardUUID, ContainerAmount, Share
from gpushare.kube.cluster import Json
from gpushare.kubelet.limit_files import InnerPid
from gpushare.kubelet.pods import HardLimit
from tests.builders import bound_json, container_json, placement
from tests.deviceplugin.node_fixture import NODE, UUIDS, found_card

A, B = UUIDS[:2]
AT = 1_700_000_000.0
DEFAULT = frozenset(group.name for group in GROUPS if group.by_default)
ALL = frozenset(group.name for group in GROUPS)
SAMPLES, BY_CARD = SmSource.SAMPLES, SmSource.CARD
NO_LIMITS = NodeLimits()
BLIND = {PROCESSES: "/proc cannot be read"}
"""The trouble in which nobody knows whose processes are."""


def cid(text: str) -> str:
    """A container's id, as a runtime makes them."""
    return hashlib.sha256(text.encode()).hexdigest()


def held(
    name: str,
    units: int = 8,
    cores: int = 0,
    *,
    on: str = A,
    containers: Mapping[str, tuple[int, int]] | None = None,
    charged: tuple[int, int] | None = None,
    namespace: str = "default",
    running: bool = True,
) -> Json:
    """A pod with a share of card ``on``; units and cores of each of its containers.

    ``charged`` is what the card is charged where that is not their sum: a whole card.
    """
    parts = {"main": (units, cores)} if containers is None else containers
    amounts = [
        ContainerAmount(container, Amount(its_cores, its_units))
        for container, (its_units, its_cores) in parts.items()
    ]
    total = sum((amount.amount for amount in amounts), Amount())
    if charged is not None:
        total = Amount(charged[1], charged[0])
    share = Share(CardUUID(on), total, tuple(amounts))
    made = bound_json(placement(name, shares=[share], node=NODE))
    made["metadata"]["namespace"] = namespace
    made["spec"]["containers"] = [
        container_json(container, its_units or None, its_cores or None)
        for container, (its_units, its_cores) in parts.items()
    ]
    return with_ids(made) if running else made


def with_ids(pod: Json) -> Json:
    """The pod once its containers run; their ids are those of ``<pod>/<container>``."""
    name = pod["metadata"]["name"]
    for kind in ("container", "initContainer"):
        pod["status"][f"{kind}Statuses"] = [
            {
                "name": container["name"],
                "containerID": "containerd://" + cid(f"{name}/{container['name']}"),
                "state": {"running": {}},
            }
            for container in pod["spec"].get(f"{kind}s", ())
        ]
    return pod


def owner(pod: str, container: str = "main", uid: str = "") -> Owner:
    """Whose a process of this pod's container is, by its cgroup."""
    return Owner(uid or f"uid-{pod}", cid(f"{pod}/{container}"))


def owner_pods(*pods: Json) -> OwnerPods:
    return OwnerPods.of(read_owner_pod(pod) for pod in pods)


def use(
    pid: int, mib: float | None = 0, sm: float | None = 0, **more: Any
) -> ProcessUse:
    """A process; its other work is 0 where nothing is said."""
    work = {"memory_copy": 0.0, "encoder": 0.0, "decoder": 0.0}
    return ProcessUse(pid, mib, sm, **{**work, **more})


@contextmanager
def slot_taken(region: Path, slot: int, *numbers: int) -> Iterator[None]:
    """Tell these of a slot by locks, as each process of the container can.

    They are bytes, pid, start and PID namespace.
    """
    file = os.open(region, os.O_RDWR)
    try:
        for number, told in enumerate(numbers):
            what = struct.pack(
                "@hhqqi0q", fcntl.F_RDLCK, 0, place(number, slot), told + 1, 0
            )
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, what)
        yield
    finally:
        os.close(file)


@contextmanager
def counting(region: Path, counted: Mapping[tuple[int, int], int]) -> Iterator[None]:
    """Processes whose preload library counts so many MiB, by pid and start."""
    with ExitStack() as slots:
        for slot, (process, mib) in enumerate(counted.items()):
            slots.enter_context(slot_taken(region, slot, mib * 2**20, *process))
        yield


def limited(
    pod: str, counted: Mapping[InnerPid, int], inside: Mapping[int, InnerPid]
) -> NodeLimits:
    """The pod's container ``main`` under tier ``preload``; counted in MiB."""
    limit = HardLimit("preload", 2048, 2560)
    sizes = {process: mib * 2**20 for process, mib in counted.items()}
    made = ContainerLimit(limit, sizes, counts_contexts=True)
    return NodeLimits({of_container(f"uid-{pod}", "main"): made}, inside)


def processes(
    by_card: Mapping[CardUUID, Sequence[ProcessUse] | ProcessesAnswer],
    owners: Mapping[int, Owner | None] | None = None,
    *,
    at: float = AT,
    source: SmSource = SAMPLES,
    failure: str = "",
    limits: NodeLimits = NO_LIMITS,
) -> ProcessRound:
    """A round; a card that is not named has none. Owner None: its cgroup was gone."""
    told = {
        uuid: uses
        if isinstance(uses, ProcessesAnswer)
        else ProcessesAnswer(tuple(uses), source)
        for uuid, uses in ({A: (), B: ()} | dict(by_card)).items()
    }
    known = {pid: owner for pid, owner in (owners or {}).items() if owner is not None}
    told = {} if failure else told
    return ProcessRound(PROCESSES, at, 0.01, told, failure, known, limits)


def rounds(
    values: Mapping[CardUUID, Mapping[str, float]],
    *,
    at: float = AT,
    failures: Mapping[CardUUID, str] | None = None,
    unsupported: Mapping[CardUUID, Iterable[str]] | None = None,
) -> dict[str, Round[CardAnswer]]:
    """A round of each group that has a value; a failing card fails in all of them."""
    lacks = {uuid: set(names) for uuid, names in (unsupported or {}).items()}
    named = {name for its in [*values.values(), *lacks.values()] for name in its}
    found: dict[str, Round[CardAnswer]] = {}
    for group in {field.group for field in FIELDS if field.name in named}:
        names = {field.name for field in FIELDS if field.group == group}
        cards = {
            uuid: CardAnswer(
                {name: value for name, value in its.items() if name in names},
                frozenset(lacks.get(uuid, set()) & names),
            )
            for uuid, its in values.items()
        }
        failed = {
            uuid: CardAnswer.failed(why) for uuid, why in (failures or {}).items()
        }
        found[group] = Round(group, at, 0.02, cards | failed)
    return found


def snapshot(
    *cards: FoundCard,
    values: Mapping[CardUUID, Mapping[str, float]] | None = None,
    round_: ProcessRound | None = None,
    groups: frozenset[str] = DEFAULT,
    fields: tuple[Field, ...] = FIELDS,
    troubles: Mapping[str, str] | None = None,
    xids: Mapping[CardUUID, XidTally] | None = None,
    **how: Any,
) -> TelemetrySnapshot:
    """Two cards of 29 units where none is given; a round of processes, if any."""
    return TelemetrySnapshot(
        driver_version="550.54.15",
        found=FoundCards(cards or (found_card(0), found_card(1))),
        groups=groups,
        fields=fields,
        rounds=rounds(values or {}, **how),
        processes=round_,
        xids=xids or {},
        troubles=troubles or {},
    )


def of(usage: Usage, pod: str, container: str = "main", card: str = A) -> ContainerUse:
    """The use of one container; exactly one."""
    named = {(use.pod, use.container, use.card): use for use in usage.containers}
    assert len(named) == len(usage.containers)
    return named[pod, container, card]
