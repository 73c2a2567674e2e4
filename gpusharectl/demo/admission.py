"""Which devices a container gets: kubelet's own steps, plugin calls included.

The source is ``pkg/kubelet/cm/devicemanager/manager.go`` (1.36), without alignment to
NUMA nodes. The house's device plugin is played against it, so it keeps to the order of
calls, to chance where kubelet leaves things to chance, and to the words of complaints.
"""

from collections.abc import Collection, Iterable
from secrets import SystemRandom

from gpusharectl.demo.asked import Asked
from gpusharectl.demo.endpoint import CallFailedError
from gpusharectl.demo.holdings import Held, Holdings
from gpusharectl.demo.registry import Registry

CHANCE = SystemRandom()
"""Go gives maps and sets in another order each time."""


class NotAdmittedError(Exception):
    """A container cannot get its devices; says why in kubelet's words."""


class Admission:
    """Gives devices to containers, one pod after the other; never two at once."""

    def __init__(self, registry: Registry, holdings: Holdings) -> None:
        self._registry = registry
        self._holdings = holdings

    def admit(self, uid: str, containers: Iterable[Asked]) -> None:
        """Give each container its devices, in this order; ``NotAdmittedError``.

        Later containers take over those of an init container that has ended.
        """
        reusable: dict[str, set[str]] = {}
        for container in containers:
            self._allocate(uid, container, reusable)
            for resource, held in self._holdings.of(uid, container.name).items():
                left = reusable.setdefault(resource, set())
                if container.ends:
                    left |= held.ids
                else:
                    left -= held.ids

    def knows(self, resource: str) -> bool:
        """Tell whether devices of this resource are offered, or ever were taken."""
        return (
            self._registry.healthy(resource) is not None
            or self._holdings.in_use(resource) is not None
        )

    def _allocate(
        self, uid: str, container: Asked, reusable: dict[str, set[str]]
    ) -> None:
        known = [name for name in shuffled(container.amounts) if self.knows(name)]
        if known:
            self._holdings.sweep()
        for resource in known:
            size = container.amounts[resource]
            if self._has_all(uid, container.name, resource, size):
                continue
            ids = self._choose(resource, size, reusable.get(resource, set()))
            held = self._give(resource, ids)
            self._holdings.record(uid, container.name, resource, held)

    def _has_all(self, uid: str, container: str, resource: str, size: int) -> bool:
        """Tell whether a container needs no more; complain where nobody can have any.

        The second comes first, so that even a container that asks for none is refused
        where no device is well, as with kubelet (contracts 2.4).
        """
        before = self._holdings.of(uid, container).get(resource)
        ids = before.ids if before else frozenset()
        if before and len(ids) != size:
            raise NotAdmittedError(
                f'pod "{uid}" container "{container}" changed request for resource '
                f'"{resource}" from {len(ids)} to {size}'
            )
        healthy = self._registry.healthy(resource)
        if healthy is None:
            raise NotAdmittedError(f"cannot allocate unregistered device {resource}")
        sick = f"cannot allocate unhealthy devices {resource}"
        if not healthy:
            raise NotAdmittedError(f"no healthy devices present; {sick}")
        if not ids <= healthy:
            text = "previously allocated devices are no longer healthy"
            raise NotAdmittedError(f"{text}; {sick}")
        return len(ids) == size

    def _choose(self, resource: str, size: int, reusable: set[str]) -> frozenset[str]:
        chosen = set(_some(reusable, size))
        self._holdings.take(resource, chosen)
        if len(chosen) == size:
            return frozenset(chosen)
        healthy = self._registry.healthy(resource) or frozenset()
        available = healthy - (self._holdings.in_use(resource) or frozenset())
        needed = size - len(chosen)
        if len(available) < needed:
            raise NotAdmittedError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        preferred = self._preferred(resource, available | chosen, chosen, size)
        for source in (preferred & available, available):
            chosen |= _some(source - chosen, size - len(chosen))
        self._holdings.take(resource, chosen)
        return frozenset(chosen)

    def _preferred(
        self, resource: str, available: Collection[str], must: set[str], size: int
    ) -> frozenset[str]:
        endpoint = self._registry.endpoint(resource)
        if endpoint is None:
            text = "endpoint not found in cache for a registered resource"
            raise NotAdmittedError(f"{text}: {resource}")
        if not endpoint.options.get_preferred_allocation_available:
            return frozenset()
        try:
            return endpoint.preferred(shuffled(available), shuffled(must), size)
        except CallFailedError as error:
            raise NotAdmittedError(str(error)) from error

    def _give(self, resource: str, ids: frozenset[str]) -> Held:
        endpoint = self._registry.endpoint(resource)
        try:
            if endpoint is None:
                raise NotAdmittedError(f"unknown Device Plugin {resource}")
            return Held(ids, endpoint.allocate(shuffled(ids)))
        except CallFailedError as error:
            self._holdings.untake()
            raise NotAdmittedError(str(error)) from error


def shuffled(names: Iterable[str]) -> list[str]:
    """Give them in an order of chance."""
    return CHANCE.sample(listed := list(names), len(listed))


def _some(ids: Iterable[str], most: int) -> set[str]:
    """Take so many at random, all where there are fewer."""
    listed = list(ids)
    return set(CHANCE.sample(listed, min(most, len(listed))))
