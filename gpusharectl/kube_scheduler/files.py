"""The files of one host that make kube-scheduler ask us, and how they are put back.

The same for kubeadm and k3s, which differ in their ``Starter``: the file that tells how
kube-scheduler is started. ``plan`` gives every file to write, in an order that leaves a
working scheduler wherever it is interrupted: our record and the backup, then what
kube-scheduler will read, and at last the starter's file. ``restore`` goes the other way
round. Neither writes; ``HostFiles.make`` does.

What we did to a host, kept beside our files as ``state.json``.

Written before the files that it tells of, so that whoever finds it after an interrupt
knows each file by its sum: untouched, as we made it, or changed by someone since.
A record that cannot be read counts as none; then the files speak for themselves.

Our KubeSchedulerConfiguration on one host: what it is to say, and what stays of it.

It is made of the configuration that kube-scheduler had before us, which stays where it
is. Where somebody has written into ours since, it is made of that.

The certificates on one host: which files to write, and when the scheduler must know.

What is in them, and when they are due, is ``certificates``.

What we ship for kube-scheduler, and as which version of ourselves.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

import orjson
import yaml

from gpushare.kube.cluster import Json
from gpusharectl import pki
from gpusharectl.kube_scheduler import config as nodescores
from gpusharectl.kube_scheduler import config as schedulerconfig
from gpusharectl.kube_scheduler.config import (
    KIND,
    Percentages,
    TlsFiles,
    Wanted,
    packing,
)
from gpusharectl.kube_scheduler.flavours import Found, Starter
from gpusharectl.kube_scheduler.host_files import (
    NEW_FILE,
    UNFINISHED,
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.kube_scheduler.static_pod import Ours

NONE = ""
"""The sum of a file that is not there."""


def sum_of(content: bytes | None) -> str:
    """Give a content's SHA-256, and ``NONE`` where there is no file."""
    return NONE if content is None else hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Sums:
    """One file: ``before`` us, as it ``was`` when we last began, and ``after``."""

    before: str
    was: str
    after: str

    def made_by_us(self, content: bytes | None) -> bool:
        """Tell whether nobody has changed it since."""
        return sum_of(content) in {self.was, self.after}


@dataclass(frozen=True, slots=True)
class Record:
    """What we did, by which version of ourselves."""

    program: str
    files: Mapping[str, Sums] = field(default_factory=dict)
    scored: Percentages = field(default_factory=dict)
    """What our configuration said of nodes to score, where we have set that to all."""
    edited: bool = False
    """Whether it has in it what somebody wrote into ours."""

    def encoded(self) -> bytes:
        """Give it as the file has it."""
        files = {
            path: {"before": sums.before, "was": sums.was, "after": sums.after}
            for path, sums in self.files.items()
        }
        body: dict[str, object] = {"gpusharectl": self.program, "files": files}
        if self.scored:
            body["scored"] = dict(self.scored)
        if self.edited:
            body["edited"] = True
        return orjson.dumps(
            body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )

    @classmethod
    def decoded(cls, content: bytes | None) -> "Record | None":
        """Read it; None where there is none, or none that can be read."""
        try:
            body: dict[str, Any] = orjson.loads(content or b"")
            files = {
                str(path): Sums(
                    str(sums["before"]), str(sums["was"]), str(sums["after"])
                )
                for path, sums in body["files"].items()
            }
            scored = {
                str(name): None if number is None else int(number)
                for name, number in body.get("scored", {}).items()
            }
            edited = bool(body.get("edited"))
            return cls(str(body["gpusharectl"]), files, scored, edited)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class Seen:
    """What lies on the host."""

    main: str | None
    """The starter's file."""
    bare: str | None
    """The starter's file as it would be without us."""
    config: bytes | None
    """Our configuration."""
    record: Record | None

    @property
    def text(self) -> str:
        """Our configuration as text."""
        return (self.config or b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Made:
    """Our configuration as it is to be, and what the record has to tell of it."""

    text: str
    edited: bool
    """Whether it is made of what somebody has written into ours."""
    scored: Percentages
    """What ``all_nodes`` has overwritten."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One host's; nothing is written here."""

    files: HostFiles
    starter: Starter
    path: str
    kubernetes: str
    """Its version, such as ``v1.36.3``."""
    extender: Json
    """Our stanza as it is shipped."""
    tls: TlsFiles | None
    all_nodes: bool

    def made(self, seen: Seen) -> Made | Obstacle:
        """Give it with our stanza, and all else as it was."""
        api = schedulerconfig.api_for(self.kubernetes)
        if isinstance(api, Obstacle):
            return api
        found = self._found(seen)
        if isinstance(found, Obstacle):
            return found
        edited = self.is_edited(seen)
        source = self.path if edited else found.config
        old = self.files.read(source) if source else b""
        if old is None:
            return Obstacle(f"{self.starter.path} names {source}, which is not there")
        known = self._known(seen, found) if edited else {}
        wanted = Wanted(
            self.extender,
            api,
            found.flags,
            self.starter.kubeconfig(seen.bare),
            self.tls,
            all_nodes=self.all_nodes,
            scored=known,
        )
        before = old.decode(errors="replace") if source else None
        text = schedulerconfig.with_stanza(before, wanted)
        if isinstance(text, Obstacle):
            return Obstacle(f"{source or self.starter.path}: {text}")
        # Off, it may have to be set back once more: a kill may come before the file.
        scored = _recorded(seen) if edited else {}
        if self.all_nodes:
            scored = nodescores.before(_read(before), known)
        origin = f" from {found.config}" if found.config else ""
        head = f"# Made{origin} by gpusharectl install, which may be run again.\n"
        return Made(head + text, edited, scored)

    def kept(self, seen: Seen) -> str | Obstacle | None:
        """Give it without our stanza, if somebody has written into it; else None."""
        if not self.is_edited(seen):
            return None
        found = self._found(seen)
        known = {} if isinstance(found, Obstacle) else self._known(seen, found)
        return schedulerconfig.without_stanza(seen.text, known)

    def is_edited(self, seen: Seen) -> bool:
        """Tell whether it says more than our stanza and what was there before us.

        Where the record does not tell, the two are compared.
        """
        if seen.config is None or self._as_left(seen, seen.config):
            return False
        plain = replace(self, tls=None, all_nodes=False)
        made = plain.made(Seen(seen.main, seen.bare, None, None))
        found = self._found(seen)
        if isinstance(made, Obstacle) or isinstance(found, Obstacle):
            return True
        bare = schedulerconfig.without_stanza(made.text, {})
        left = schedulerconfig.without_stanza(seen.text, self._known(seen, found))
        if isinstance(bare, Obstacle) or isinstance(left, Obstacle):
            return True
        return bool(yaml.safe_load(bare) != yaml.safe_load(left))

    def _as_left(self, seen: Seen, config: bytes) -> bool:
        """Tell whether the record knows it, and as ours alone."""
        if seen.record is None or seen.record.edited:
            return False
        sums = seen.record.files.get(self.path)
        return sums is not None and sums.made_by_us(config)

    def _found(self, seen: Seen) -> Found | Obstacle:
        found = self.starter.found(seen.bare)
        if isinstance(found, Obstacle):
            return Obstacle(f"{self.starter.path} {found}")
        return found

    def _known(self, seen: Seen, found: Found) -> Percentages:
        """Tell what was said of nodes to score, where ours says something of its own.

        By the record, and where that is lost by the configuration from before us.
        """
        if not schedulerconfig.is_weighted(seen.text, self.extender):
            return {}
        old = self.files.read(found.config) if found.config else None
        text = None if old is None else old.decode(errors="replace")
        return {**nodescores.said(_read(text)), **_recorded(seen)}


def _recorded(seen: Seen) -> Percentages:
    return seen.record.scored if seen.record else {}


def _read(text: str | None) -> Json:
    config = {} if text is None else schedulerconfig.read(text)
    return {} if isinstance(config, Obstacle) else config


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
            for name, one in pki.plan(there, now).items()
        ]

    def stamp(self, planned: Sequence[FileChange]) -> str:
        """Give a text that changes when kube-scheduler must start anew for them."""
        new = {PurePosixPath(each.path).name: each.after or b"" for each in planned}
        return pki.scheduler_stamp({**self._there(), **new})

    def paths(self) -> Sequence[str]:
        """Give the files that lie there."""
        return [self._path(name) for name in self.files.names(self.folder)]

    def for_scheduler(self) -> TlsFiles:
        """Name those that our stanza names."""
        client = pki.SCHEDULER.name
        return TlsFiles(
            self._path(f"{pki.AUTHORITY}.crt"),
            self._path(f"{client}.crt"),
            self._path(f"{client}.key"),
            pki.SERVER_NAME,
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


SHIPPED = "scheduler-extender.yaml"


def shipped_extender() -> Json:
    """Give our entry of ``extenders``, plain HTTP on loopback."""
    text = files("manifests").joinpath(SHIPPED).read_text()
    (extender,) = yaml.safe_load(text)["extenders"]
    found: Json = extender
    return found


def packing_configuration(text: str) -> str:
    """Give a KubeSchedulerConfiguration of ours for ``frag``; any other text as it is.

    For the one that is shipped with a scheduler of our own, which scores all nodes.
    """
    if KIND not in text:
        return text
    config = yaml.safe_load(text)
    config["extenders"] = [packing(each) for each in config["extenders"]]
    return yaml.safe_dump(config, sort_keys=False)


def asked_of(kubernetes: str, *, tls: bool = False, packs: bool = False) -> Asked:
    """Say what is wanted of a host now, in a cluster of this version (``v1.36.3``)."""
    now = datetime.now(UTC)
    return Asked(kubernetes, version("gpushare"), shipped_extender(), now, tls, packs)
