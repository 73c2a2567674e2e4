"""All that inspect and why look at: taken once, at one time. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from gpushare.domain.model import PodUID
from gpushare.kube import codec
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.fields import Malformed
from gpusharectl.inspection import facts
from gpusharectl.inspection.books import Books


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that an operator should look at: what is so, and what to do."""

    about: str
    what: str
    do: str


@dataclass(frozen=True)
class Picture:
    """The books, and the objects that they were not told of.

    ``pods`` are those that name our resources and have not ended; ``parts`` are our own
    pods and kube-scheduler's; ``troubles`` what others have found, such as on this
    host's files; ``quotas`` all ResourceQuotas, None where they could not be read;
    ``reviewed`` whether the API server asks our webhook, None where nobody may know.
    """

    books: Books
    nodes: tuple[Json, ...]
    pods: tuple[Json, ...]
    parts: tuple[Json, ...]
    now: datetime
    troubles: tuple[Trouble, ...] = ()
    quotas: tuple[Json, ...] | None = ()
    reviewed: bool | None = None

    @cached_property
    def records(self) -> Mapping[PodUID, PodRecord]:
        """What the pods ask and hold; without those that cannot be read."""
        return {record.pod.uid: record for record, _ in self.read.values()}

    @cached_property
    def read(self) -> Mapping[PodUID, tuple[PodRecord, Json]]:
        """Each pod that can be read, with its object."""
        found: dict[PodUID, tuple[PodRecord, Json]] = {}
        for pod in self.pods:
            try:
                record = codec.pod_record(pod)
            except Malformed:
                # The books leave it out as well; the API server lets none such in.
                continue
            found[record.pod.uid] = (record, pod)
        return found

    def node(self, name: str) -> Json | None:
        """Give a node's object, None where there is none."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Json]:
        return {facts.name_of(node): node for node in self.nodes}

    @cached_property
    def plugins(self) -> Mapping[str, bool]:
        """The nodes with a device plugin's pod, and whether one there is ready."""
        found: dict[str, bool] = {}
        for pod in self.parts:
            if facts.is_part(pod, facts.DEVICE_PLUGIN):
                name = facts.node_of(pod)
                ready = facts.holds(pod, "Ready") is True
                found[name] = found.get(name, False) or ready
        return found
