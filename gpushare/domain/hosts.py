"""CPU and memory of the nodes, and what pods hold of them.

A free card is useless if its node has no CPU left for a pod, so the policy ``frag``
looks at both. All bound pods count here, also those that ask for no card.
"""

from dataclasses import dataclass
from sys import intern
from threading import Lock

from gpushare.domain.model import NO_HOST, HostAmount, NodeName, PodUID

_MOST_KINDS = 10_000
_MOST_CHANGES = 16_384


@dataclass(frozen=True, slots=True)
class HostUse:
    """What a pod holds of its node, and its priority."""

    amount: HostAmount
    priority: int = 0


class Hosts:
    """What each node has for its pods, and what is free of it.

    It is filled from nodes and pods of the API server, which is the source of truth.
    ``free`` returns the same object until the value changes. 100,000 pods need about
    20 MB: a UID, a node and one of few distinct amounts each.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._allocatable: dict[NodeName, HostAmount] = {}
        self._used: dict[NodeName, HostAmount] = {}
        self._free: dict[NodeName, HostAmount] = {}
        self._pods: dict[PodUID, tuple[NodeName, HostUse]] = {}
        self._kinds: dict[tuple[int, int], HostUse] = {}
        self._changed: set[NodeName] | None = set()

    def free(self, name: NodeName) -> HostAmount | None:
        """Return what a node has free, below zero if it is over-committed.

        None if the node's capacity is not known.
        """
        free = self._free.get(name)
        if free is not None:
            return free
        with self._lock:
            has = self._allocatable.get(name)
            if has is None:
                return None
            free = self._free[name] = has - self._used.get(name, NO_HOST)
            return free

    def allocatable(self, name: NodeName) -> HostAmount | None:
        """Return what a node has for all its pods together; None if unknown."""
        return self._allocatable.get(name)

    def pod(self, uid: PodUID) -> HostUse | None:
        """Return what a pod holds of the node that it is bound to; None if unknown."""
        entry = self._pods.get(uid)
        return None if entry is None else entry[1]

    def holders(self) -> frozenset[PodUID]:
        """Return all pods that are bound to a node."""
        with self._lock:
            return frozenset(self._pods)

    def set_allocatable(self, name: NodeName, amount: HostAmount | None) -> None:
        """Record what a node has; None if the node is deleted or does not say."""
        with self._lock:
            if self._allocatable.get(name) == amount:
                return
            if amount is None:
                del self._allocatable[name]
            else:
                self._allocatable[name] = amount
            self._touch(name)

    def hold(
        self, uid: PodUID, name: NodeName, amount: HostAmount, priority: int = 0
    ) -> None:
        """Record a pod that is bound to a node, and what it asks now."""
        with self._lock:
            host_use = self._shared(amount, priority)
            before = self._pods.get(uid)
            if before is not None:
                if before == (name, host_use):
                    return
                self._subtract(before[0], before[1].amount)
            # One text for all pods of a node.
            name = NodeName(intern(name))
            self._pods[uid] = (name, host_use)
            self._used[name] = self._used.get(name, NO_HOST) + amount
            self._touch(name)

    def release(self, uid: PodUID) -> None:
        """Remove a pod that has ended or was deleted."""
        with self._lock:
            before = self._pods.pop(uid, None)
            if before is not None:
                self._subtract(before[0], before[1].amount)

    def changes(self) -> frozenset[NodeName] | None:
        """Return the nodes that changed since the last call; there is one reader.

        None if they were too many to keep: read all nodes then.
        """
        with self._lock:
            changed, self._changed = self._changed, set()
            return None if changed is None else frozenset(changed)

    def _subtract(self, name: NodeName, amount: HostAmount) -> None:
        rest = self._used.get(name, NO_HOST) - amount
        if rest == NO_HOST:
            self._used.pop(name, None)
        else:
            self._used[name] = rest
        self._touch(name)

    def _touch(self, name: NodeName) -> None:
        self._free.pop(name, None)
        if self._changed is not None:
            self._changed.add(name)
            if len(self._changed) > _MOST_CHANGES:
                # There is no reader if no pod asks for frag.
                self._changed = None

    def _shared(self, amount: HostAmount, priority: int) -> HostUse:
        # By identity, which is quick: pods of a kind have the same amount already, and
        # an amount that is kept here keeps its identity.
        key = id(amount), priority
        host_use = self._kinds.get(key)
        if host_use is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            host_use = self._kinds[key] = HostUse(amount, priority)
        return host_use
