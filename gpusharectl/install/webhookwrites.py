"""Writes to what two installs at once could spoil: the certificate and who believes it.

Each is made only over what was seen when the install was planned. So of two that renew
a certificate the second stops before it has written anything that the first one needs,
and what the API server believes is always what the replicas show.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Conflict
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.webhookobjects import SECRET, bundle_of, files_of

_TRIES = 5
"""Others write to such objects as well, labels say, which is no conflict."""
Mark = Mapping[str, bytes] | None


class OvertakenError(Exception):
    """Another has changed it since; the text names the object."""


@dataclass
class Overwriting:
    """Write only over what was seen; ``seen`` has a mark of each object, as it was."""

    objects: Objects
    seen: dict[Ref, Mark] = field(default_factory=dict)

    @classmethod
    def of(
        cls, objects: Objects, there: Iterable[tuple[Ref, Json | None]]
    ) -> "Overwriting":
        """Begin with objects as they were read; None where there is none."""
        return cls(objects, {ref: _mark(ref, body) for ref, body in there})

    def put(self, body: Json) -> None:
        """Apply it; ``OvertakenError`` where it is no longer what was seen.

        What is written is what was seen from then on.
        """
        ref = Ref.of(body)
        for _ in range(_TRIES):
            now = self.objects.get(ref)
            if _mark(ref, now) != self.seen[ref]:
                break
            try:
                self._write(body, now)
            except Conflict:
                # Between our look and our write somebody wrote; look again.
                continue
            self.seen[ref] = _mark(ref, body)
            return
        raise OvertakenError(str(ref))

    def _write(self, body: Json, now: Json | None) -> None:
        if now is None and Ref.of(body) == SECRET:
            # An apply would lay ours over the one that another has made just now.
            self.objects.create(body)
            return
        version = {"resourceVersion": now["metadata"]["resourceVersion"]} if now else {}
        metadata = {**body["metadata"], **version}
        self.objects.apply({**body, "metadata": metadata})


def _mark(ref: Ref, body: Json | None) -> Mark:
    """Give what of an object only one may change at a time."""
    if body is None:
        return None
    return files_of(body) if ref == SECRET else {"authorities": bundle_of([body])}
