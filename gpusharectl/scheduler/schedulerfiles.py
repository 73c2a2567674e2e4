"""The files of one host that make kube-scheduler ask us, and how they are put back.

The same for kubeadm and k3s, which differ in their ``Starter``: the file that tells how
kube-scheduler is started. ``plan`` gives every file to write, in an order that leaves a
working scheduler wherever it is interrupted: our record and the backup, then what
kube-scheduler will read, and at last the starter's file. ``restore`` goes the other way
round. Neither writes; ``HostFiles.make`` does.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from gpushare.kube.cluster import Json
from gpusharectl.scheduler import schedulerconfig
from gpusharectl.scheduler.configfile import ConfigFile, Made, Seen
from gpusharectl.scheduler.hostcertificates import HostCertificates
from gpusharectl.scheduler.hostfiles import NEW_FILE, UNFINISHED, FileChange, HostFiles
from gpusharectl.scheduler.hostrecord import NONE, Record, Sums, sum_of
from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.starter import Starter
from gpusharectl.scheduler.staticpod import Ours

CONFIG = "scheduler.yaml"
_READABLE = 0o644
"""There is no secret in it, and a scheduler without root has to read it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is wanted of the host."""

    kubernetes: str
    """Its version, such as ``v1.36.3``."""
    program: str
    """Our own version, for the record."""
    extender: Json
    """Our stanza as it is shipped."""
    now: datetime
    tls: bool = False
    packs: bool = False
    """Whether kube-scheduler is to look at all nodes, as the policy ``frag`` needs."""


class SchedulerFiles:
    """One host's files; every method reads them anew."""

    def __init__(self, files: HostFiles, starter: Starter, asked: Asked) -> None:
        self._files = files
        self._starter = starter
        self._asked = asked
        self.config = f"{starter.folder}/{CONFIG}"
        self.state = f"{starter.folder}/state.json"
        self.backup = f"{starter.folder}/backup/{PurePosixPath(starter.path).name}"
        self.certificates = HostCertificates(files, f"{starter.folder}/tls")

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to write, in order; none where all is as wanted."""
        seen = self._seen()
        if isinstance(seen, Obstacle):
            return seen
        made = self._configuration().made(seen)
        if isinstance(made, Obstacle):
            return made
        tls = self._certificates()
        main = self._starter.edited(seen.main, self._ours(made.text, tls))
        if isinstance(main, Obstacle):
            return self._about(main)
        ours = [*tls, self._change(self.config, made.text, _READABLE)]
        changes = [*ours, self._change(self._starter.path, main)]
        return [each for each in self._recorded(seen, made, changes) if _differs(each)]

    def restore(self) -> Sequence[FileChange] | Obstacle:
        """Give the files to put back or remove, in order; none where none is ours.

        A configuration of ours that someone has changed since stays, without our
        stanza, and so does what makes kube-scheduler read it.
        """
        seen = self._seen()
        if isinstance(seen, Obstacle):
            return seen
        is_read = self._starter.is_edited(seen.main, self._ours("", ()))
        kept = self._configuration().kept(seen) if is_read else None
        if isinstance(kept, Obstacle):
            return Obstacle(f"{self.config} {kept}")
        main: str | Obstacle | None = seen.bare
        if kept is not None:
            main = self._starter.edited(seen.main, self._ours(kept, ()))
        if isinstance(main, Obstacle):
            return self._about(main)
        others = (self.next, self.backup, self.state)
        gone = (*self._unfinished(), *self.certificates.paths(), *others)
        wanted = {self._starter.path: main, self.config: kept, **dict.fromkeys(gone)}
        changes = [self._change(path, text) for path, text in wanted.items()]
        return [each for each in changes if _differs(each)]

    def _certificates(self) -> Sequence[FileChange]:
        """Give those to write; none where no TLS is asked for."""
        return self.certificates.planned(self._asked.now) if self._asked.tls else ()

    @property
    def next(self) -> str:
        """Where a configuration lies while it is tried."""
        return f"{self.config}.next"

    def missing(self) -> str:
        """Say in words if we had configured kube-scheduler and someone undid it."""
        record = Record.decoded(self._files.read(self.state))
        if record is None or self._starter.path not in record.files:
            return ""
        seen = self._seen()
        if isinstance(seen, Obstacle):
            return str(seen)
        if not self._starter.is_edited(seen.main, self._ours("", ())):
            return (
                f"{self._starter.path} no longer names {self.config}, so nobody asks "
                "the extender (kubeadm writes that file anew when it upgrades): "
                "gpusharectl install mends it"
            )
        if not schedulerconfig.has_stanza(
            (seen.config or b"").decode(errors="replace")
        ):
            return f"{self.config} has lost our stanza: gpusharectl install mends it"
        return ""

    def make(self, changes: Sequence[FileChange]) -> None:
        """Write and remove, and then our folders where nothing lies in them."""
        self._files.make(changes)
        for folder in ("/backup", "/tls", ""):
            self._files.remove_empty(f"{self._starter.folder}{folder}")

    def _seen(self) -> Seen | Obstacle:
        content = self._files.read(self._starter.path)
        record = Record.decoded(self._files.read(self.state))
        backup = self._files.read(self.backup)
        try:
            main = None if content is None else content.decode()
        except UnicodeDecodeError:
            return self._about(Obstacle(f"is not UTF-8 text; {self._starter.cure}"))
        bare = self._starter.bare(main, self._ours("", ()))
        sums = record.files.get(self._starter.path) if record else None
        if sums and sum_of(content) == sums.after and sum_of(backup) == sums.before:
            # What we saved is surer than what we work out.
            bare = None if backup is None else backup.decode()
        if isinstance(bare, Obstacle):
            return self._about(bare)
        return Seen(main, bare, self._files.read(self.config), record)

    def _configuration(self) -> ConfigFile:
        asked = self._asked
        return ConfigFile(
            self._files,
            self._starter,
            self.config,
            asked.kubernetes,
            asked.extender,
            self.certificates.for_scheduler() if asked.tls else None,
            asked.packs,
        )

    def _unfinished(self) -> Sequence[str]:
        """Give the files that someone was killed over."""
        folders = (str(PurePosixPath(self._starter.path).parent), self._starter.folder)
        return [
            f"{folder}/{name}"
            for folder in (*folders, f"{self._starter.folder}/backup")
            for name in self._files.names(folder)
            if name.startswith(".") and UNFINISHED in name
        ]

    def _recorded(
        self, seen: Seen, made: Made, changes: Sequence[FileChange]
    ) -> Sequence[FileChange]:
        """Put the record and the backup before the changes that they are about."""
        files = dict(seen.record.files) if seen.record else {}
        backup = self._change(self.backup, seen.bare)
        for each in changes:
            main = each.path == self._starter.path
            before = sum_of(backup.after) if main else NONE
            was = sum_of(each.before)
            if not _differs(each) and each.path in files:
                was = files[each.path].was
            files[each.path] = Sums(before, was, sum_of(each.after))
        record = Record(self._asked.program, files, made.scored, made.edited)
        told = record.encoded().decode()
        return [self._change(self.state, told), backup, *changes]

    def _ours(self, config: str, tls: Sequence[FileChange]) -> Ours:
        digest = hashlib.sha256(config.encode())
        if self._asked.tls:
            digest.update(self.certificates.stamp(tls).encode())
        return Ours(self.config, self._starter.folder, digest.hexdigest())

    def _change(self, path: str, after: str | None, mode: int = NEW_FILE) -> FileChange:
        content = None if after is None else after.encode()
        return FileChange(path, self._files.read(path), content, mode)

    def _about(self, refusal: Obstacle) -> Obstacle:
        return Obstacle(f"{self._starter.path} {refusal}")


def _differs(change: FileChange) -> bool:
    return change.before != change.after
