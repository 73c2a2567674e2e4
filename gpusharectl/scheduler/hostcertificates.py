"""The certificates on one host: which files to write, and when the scheduler must know.

What is in them, and when they are due, is ``certificates``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from gpusharectl import certificates
from gpusharectl.scheduler.hostfiles import FileChange, HostFiles
from gpusharectl.scheduler.schedulerconfig import TlsFiles


@dataclass(frozen=True, slots=True)
class HostCertificates:
    """The files in one folder of the host; every method reads them anew."""

    files: HostFiles
    folder: str

    def planned(self, now: datetime) -> Sequence[FileChange]:
        """Give those to write: what is missing, broken or due."""
        there = self._there()
        return [
            FileChange(
                self._path(name), there.get(name), one.content, one.mode, one.uid
            )
            for name, one in certificates.plan(there, now).items()
        ]

    def stamp(self, planned: Sequence[FileChange]) -> str:
        """Give a text that changes when kube-scheduler must start anew for them."""
        new = {PurePosixPath(each.path).name: each.after or b"" for each in planned}
        return certificates.scheduler_stamp({**self._there(), **new})

    def paths(self) -> Sequence[str]:
        """Give the files that lie there."""
        return [self._path(name) for name in self.files.names(self.folder)]

    def for_scheduler(self) -> TlsFiles:
        """Name those that our stanza names."""
        client = certificates.SCHEDULER.name
        return TlsFiles(
            self._path(f"{certificates.AUTHORITY}.crt"),
            self._path(f"{client}.crt"),
            self._path(f"{client}.key"),
            certificates.SERVER_NAME,
        )

    def _there(self) -> Mapping[str, bytes]:
        found = {path: self.files.read(path) for path in self.paths()}
        return {
            PurePosixPath(path).name: text
            for path, text in found.items()
            if text is not None
        }

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"
