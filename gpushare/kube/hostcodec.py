"""What pods ask of a node's own CPU and memory, and what nodes have of it."""

from collections.abc import Iterable
from functools import lru_cache

import orjson

from gpushare.domain.hosts import Hosts
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.quantity import NotAQuantity, mebibytes, thousandths
from gpushare.kube.cluster import Json
from gpushare.kube.essence import LONGEST_KEPT, MOST_KINDS, essence

TERMINAL = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have ended for good."""


def host_amount(pod: Json) -> HostAmount | None:
    """Give what a pod holds at its peak, as kube-scheduler reckons (contracts 5).

    Its overhead too; where the pod as a whole names an amount, that one counts. None
    where it cannot be read: no API server would let that through.
    """
    kind = essence(pod)
    return None if kind is None else amount_of(kind)


def amount_of(kind: bytes) -> HostAmount | None:
    """Give the same by the pod's ``essence``."""
    return _kept(kind) if len(kind) <= LONGEST_KEPT else _read(kind)


def _read(kind: bytes) -> HostAmount | None:
    try:
        return _amount(orjson.loads(kind)["spec"])
    except (NotAQuantity, KeyError, TypeError, AttributeError):
        return None


_kept = lru_cache(MOST_KINDS)(_read)


def _amount(spec: Json) -> HostAmount:
    cpu, memory = _peak(spec)
    whole = _asked(spec)
    over = spec.get("overhead") or {}
    return HostAmount(
        (thousandths(whole["cpu"]) if "cpu" in whole else cpu)
        + thousandths(over.get("cpu", 0)),
        (mebibytes(whole["memory"]) if "memory" in whole else memory)
        + mebibytes(over.get("memory", 0)),
    )


def host_capacity(node: Json) -> HostAmount | None:
    """Give what a node has for its pods; None where it does not say, or not readably.

    Memory is rounded up to MiB on both sides, by less than anything is decided by.
    """
    try:
        has = node["status"]["allocatable"]
        return HostAmount(thousandths(has["cpu"]), mebibytes(has["memory"]))
    except (NotAQuantity, KeyError, TypeError):
        return None


def follow_host(hosts: Hosts, uid: PodUID, pod: Json) -> None:
    """Write a pod as it is now into the book of its host: from binding to its end."""
    spec = pod.get("spec") or {}
    node = spec.get("nodeName")
    if (pod.get("status") or {}).get("phase") in TERMINAL:
        hosts.release(uid)
    elif node and (amount := host_amount(pod)) is not None:
        priority = spec.get("priority")
        known = priority if type(priority) is int else 0
        hosts.hold(uid, NodeName(node), amount, known)


def _peak(spec: Json) -> tuple[int, int]:
    """Sum up containers and sidecars, or what an init container needs where more."""
    cpu, memory = _sum(spec.get("containers") or ())
    first = spec.get("initContainers")
    if not first:
        return cpu, memory
    side_cpu, side_memory, most_cpu, most_memory = 0, 0, 0, 0
    for container in first:
        more_cpu, more_memory = _sum((container,))
        if container.get("restartPolicy") == "Always":
            side_cpu += more_cpu
            side_memory += more_memory
            more_cpu = more_memory = 0
        most_cpu = max(most_cpu, side_cpu + more_cpu)
        most_memory = max(most_memory, side_memory + more_memory)
    return max(cpu + side_cpu, most_cpu), max(memory + side_memory, most_memory)


def _sum(containers: Iterable[Json]) -> tuple[int, int]:
    cpu = memory = 0
    for container in containers:
        asked = _asked(container)
        if "cpu" in asked:
            cpu += thousandths(asked["cpu"])
        if "memory" in asked:
            memory += mebibytes(asked["memory"])
    return cpu, memory


def _asked(thing: Json) -> Json:
    """Give what is asked: ``requests``, or ``limits``, the default of each."""
    resources = thing.get("resources")
    if not resources:
        return {}
    asked: Json = resources.get("requests") or {}
    limits = resources.get("limits")
    return {**limits, **asked} if limits else asked
