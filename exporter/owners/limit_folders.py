"""What should hold the containers of a node, as the device plugin wrote it down.

Two folders, read-only: one of containers, one of prepared ResourceClaims. Neither the
memory nor the files of processes are touched, so it needs no right to trace them.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from exporter.held import ContainerLimit, of_container
from exporter.owners.claims import ResourceClaimsFolder
from exporter.owners.regions import counted_in
from gpushare.cards.deadline import DeadlineCalls, DeadlineExceeded
from gpushare.kubelet.limit_files import (
    HARD_LIMIT,
    LIMITS,
    REGION,
    InnerPid,
    counts_contexts,
    parse_hard_limit,
)
from gpushare.kubelet.pods import HardLimit
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

_WITHIN_S = 0.2
"""How long all regions of the node are waited for, whatever containers do to them."""


class LimitFolders:
    """Reads the folders ``containers`` and ``claims`` below the plugin's folder."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._prepared = ResourceClaimsFolder(state_dir / "claims")
        self._log_once = LogOnce(logger)
        self._regions = DeadlineCalls(_WITHIN_S)

    def read(self) -> Mapping[str, ContainerLimit]:
        """Return what should hold each container, as ``NodeLimits.containers``."""
        limits = [*self._containers(), *self._claims()]
        regions = [f / REGION for _, f, limit in limits if limit.tier == "preload"]
        calls = {region: partial(counted_in, region) for region in regions}
        # To open a FIFO, the kernel waits for whoever writes into it, who may have
        # memory that never comes. No signal ends that, so threads of their own wait.
        counted = self._regions.make_all(calls)
        return {
            name: self._of_folder(folder, limit, counted)
            for name, folder, limit in limits
        }

    def _containers(self) -> Iterator[tuple[str, Path, HardLimit]]:
        # A container has one of its folders with a limit.
        for path in sorted((self._state_dir / "containers").glob(f"*/{HARD_LIMIT}")):
            folder = path.parent
            try:
                limit = parse_hard_limit(path.read_text())
                name = container_of(folder)
            except (OSError, ValueError, TypeError, KeyError):
                # It was removed meanwhile, or is cut short.
                continue
            if limit is not None:
                yield name, folder, limit

    def _claims(self) -> Iterator[tuple[str, Path, HardLimit]]:
        for claim in self._prepared.read().claims:
            for request, limit in claim.limits.items():
                part = f"{claim.uid}/{request}"
                yield part, self._state_dir / "claims" / part, limit

    def _of_folder(
        self,
        folder: Path,
        limit: HardLimit,
        counted_by_region: Mapping[Path, Mapping[InnerPid, int] | Exception | None],
    ) -> ContainerLimit:
        if limit.tier != "preload":
            return ContainerLimit(limit)
        region = folder / REGION
        try:
            counted = counted_by_region[region]
            if isinstance(counted, Exception):
                raise counted
            contexts = counts_contexts((folder / LIMITS).read_text())
        except FileNotFoundError:
            # It starts just now, or its pod has just ended.
            return ContainerLimit(limit)
        except (OSError, ValueError, DeadlineExceeded) as error:
            facts = {"file": str(region), "because": str(error)}
            message = "it is not known whether a container is held to its share"
            self._log_once.problem(region, str(error), message, **facts)
            return ContainerLimit(limit)
        self._log_once.recovered(region)
        return ContainerLimit(limit, counted, contexts)


def container_of(folder: Path) -> str:
    """Return whose folder it is, as ``of_container`` does.

    ``OSError``, ``ValueError``, ``TypeError`` and ``KeyError`` if it is not known.
    """
    record = json.loads(folder.with_name(f"{folder.name}.json").read_text())
    if not record["container"]:
        # Allocate did not know it; what the container sees was written at its start.
        record = json.loads((folder / "allocation.json").read_text())
    return of_container(record["uid"], record["container"])


def merge_limits(
    before: Mapping[str, ContainerLimit], after: Mapping[str, ContainerLimit]
) -> Mapping[str, ContainerLimit]:
    """Return the limits with the most that was counted before or after a reading.

    Memory that was given back between two readings is else counted in one alone.
    """
    return {
        name: replace(limit, counted=_most(before.get(name), limit.counted))
        for name, limit in after.items()
    }


def _most(
    before: ContainerLimit | None, counted: Mapping[InnerPid, int] | None
) -> Mapping[InnerPid, int] | None:
    was = before.counted if before else None
    if was is None or counted is None:
        return counted
    return {
        name: max(was.get(name, 0), counted.get(name, 0))
        for name in was.keys() | counted.keys()
    }
