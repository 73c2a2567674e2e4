"""Plan the files on one host that make kube-scheduler call the extender.

kubeadm and k3s differ only in their ``Starter``: the file that says how kube-scheduler
is started. ``SchedulerFiles.plan`` returns every file to write, in an order that leaves
a working scheduler wherever it is interrupted: first our record and the backup, then
what kube-scheduler will read, at last the starter's file. ``restore`` returns the way
back. Neither writes; ``SchedulerFiles.make`` does.

Our configuration is made from the one that kube-scheduler had before; that file stays
where it is. If somebody has edited ours since, it is made from the edited one.

The record (``state.json`` beside our files) is written before the files that it names.
So after an interruption each file is known by its SHA-256: untouched, as we wrote it,
or changed by somebody since. A record that cannot be read counts as none; then the
files themselves are compared.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any, Protocol

import orjson
import yaml

from gpushare.kube.cluster import Json
from gpusharectl import pki
from gpusharectl.kube_scheduler.config import (
    KIND,
    Percentages,
    TlsFiles,
    Wanted,
    api_for,
    has_stanza,
    is_weighted,
    overwritten_percentages,
    packing,
    percentages,
    read,
    with_stanza,
    without_stanza,
)
from gpusharectl.kube_scheduler.host_files import (
    NEW_FILE,
    UNFINISHED,
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.kube_scheduler.static_pod import Ours
from gpusharectl.kube_scheduler.yaml_edit import data

NONE = ""
"""The digest of a file that does not exist."""
CONFIG = "scheduler.yaml"
SHIPPED = "scheduler-extender.yaml"
READABLE = 0o644
"""Our configuration has no secret, and a kube-scheduler without root has to read it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What kube-scheduler has been reading before us."""

    config: str
    """Its own configuration on the host; "" for none."""
    flags: dict[str, str]


class Starter(Protocol):
    """The file that says how kube-scheduler is started. Pure; None is no file."""

    path: str
    folder: str
    """Where our own files lie."""
    remedy: str
    """What to do if the file is broken."""

    def kubeconfig(self, bare: str | None) -> str:
        """Return the kubeconfig's path if it is not among the flags, else ""."""
        ...

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Return the text with our configuration; unchanged if it has it."""
        ...

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Return the text without what is ours; None if nothing is left."""
        ...

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Return whether kube-scheduler is told to read our configuration."""
        ...

    def found(self, bare: str | None) -> Found | Obstacle:
        """Return what kube-scheduler reads according to a text without ours."""
        ...


@dataclass(frozen=True, slots=True)
class Desired:
    """What is wanted of the host."""

    kubernetes: str
    """The cluster's version, such as ``v1.36.3``."""
    program: str
    """Our own version, for the record."""
    extender: Json
    """Our entry of ``extenders`` as it is shipped."""
    now: datetime
    tls: bool = False
    frag: bool = False
    """Whether the policy is ``frag``: score all nodes, and our score outweighs all."""


def desired_now(kubernetes: str, *, tls: bool = False, frag: bool = False) -> Desired:
    """Return what is wanted of a host now, in a cluster of this version."""
    now = datetime.now(UTC)
    return Desired(kubernetes, version("gpushare"), shipped_extender(), now, tls, frag)


def shipped_extender() -> Json:
    """Return our entry of ``extenders``: plain HTTP on loopback."""
    text = files("manifests").joinpath(SHIPPED).read_text()
    (extender,) = yaml.safe_load(text)["extenders"]
    found: Json = extender
    return found


def packing_configuration(text: str) -> str:
    """Return the second scheduler's configuration for ``frag``; other text unchanged.

    The shipped configuration scores all nodes already.
    """
    if KIND not in text:
        return text
    config = yaml.safe_load(text)
    config["extenders"] = [packing(each) for each in config["extenders"]]
    return yaml.safe_dump(config, sort_keys=False)


def digest_of(content: bytes | None) -> str:
    """Return a content's SHA-256, or ``NONE`` if there is no file."""
    return NONE if content is None else hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Digests:
    """One file: ``before`` us, as it ``was`` when we last began, and ``after``."""

    before: str
    was: str
    after: str

    def made_by_us(self, content: bytes | None) -> bool:
        """Return whether nobody has changed the file since."""
        return digest_of(content) in {self.was, self.after}


@dataclass(frozen=True, slots=True)
class Record:
    """What we did, and which version of this program did it."""

    program: str
    files: Mapping[str, Digests] = field(default_factory=dict)
    scored: Percentages = field(default_factory=dict)
    """The values of ``percentageOfNodesToScore`` that we have overwritten."""
    edited: bool = False
    """Whether our configuration contains what somebody wrote into it."""

    def encoded(self) -> bytes:
        """Return the content of ``state.json``."""
        files = {
            path: {"before": one.before, "was": one.was, "after": one.after}
            for path, one in self.files.items()
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
        """Parse ``state.json``; None if there is none, or if it cannot be read."""
        try:
            body: dict[str, Any] = orjson.loads(content or b"")
            files = {
                str(path): Digests(
                    str(one["before"]), str(one["was"]), str(one["after"])
                )
                for path, one in body["files"].items()
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
class HostState:
    """What is on the host now."""

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

    @property
    def scored(self) -> Percentages:
        """The recorded values that ``all_nodes`` has overwritten."""
        return self.record.scored if self.record else {}


@dataclass(frozen=True, slots=True)
class BuiltConfig:
    """Our configuration as it is to be, and what the record has to say of it."""

    text: str
    edited: bool
    """Whether it is made from a configuration of ours that somebody has edited."""
    scored: Percentages
    """The values that ``all_nodes`` has overwritten."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Our configuration on one host; nothing is written here."""

    files: HostFiles
    starter: Starter
    path: str
    kubernetes: str
    """The cluster's version, such as ``v1.36.3``."""
    extender: Json
    """Our entry of ``extenders`` as it is shipped."""
    tls: TlsFiles | None
    all_nodes: bool

    def built(self, state: HostState) -> BuiltConfig | Obstacle:
        """Return it with our extender, and everything else as it was."""
        api = api_for(self.kubernetes)
        if isinstance(api, Obstacle):
            return api
        found = self._found(state)
        if isinstance(found, Obstacle):
            return found
        edited = self.is_edited(state)
        source = self.path if edited else found.config
        old = self.files.read(source) if source else b""
        if old is None:
            return Obstacle(f"{self.starter.path} names {source}, which does not exist")
        known = self._known(state, found) if edited else {}
        wanted = Wanted(
            self.extender,
            api,
            found.flags,
            self.starter.kubeconfig(state.bare),
            self.tls,
            all_nodes=self.all_nodes,
            scored=known,
        )
        before = old.decode(errors="replace") if source else None
        text = with_stanza(before, wanted)
        if isinstance(text, Obstacle):
            return Obstacle(f"{source or self.starter.path}: {text}")
        # Kept even if it is off now: a kill may come before the file is written.
        scored = state.scored if edited else {}
        if self.all_nodes:
            scored = overwritten_percentages(_parsed(before), known)
        origin = f" from {found.config}" if found.config else ""
        head = f"# Made{origin} by gpusharectl install, which may be run again.\n"
        return BuiltConfig(head + text, edited, scored)

    def kept(self, state: HostState) -> str | Obstacle | None:
        """Return it without our extender, if somebody has edited it; else None."""
        if not self.is_edited(state):
            return None
        found = self._found(state)
        known = {} if isinstance(found, Obstacle) else self._known(state, found)
        return without_stanza(state.text, known)

    def is_edited(self, state: HostState) -> bool:
        """Return whether it contains more than our extender and what was there before.

        If the record does not tell, the two are compared.
        """
        if state.config is None or self._as_recorded(state, state.config):
            return False
        plain = replace(self, tls=None, all_nodes=False)
        built = plain.built(HostState(state.main, state.bare, None, None))
        found = self._found(state)
        if isinstance(built, Obstacle) or isinstance(found, Obstacle):
            return True
        bare = without_stanza(built.text, {})
        left = without_stanza(state.text, self._known(state, found))
        if isinstance(bare, Obstacle) or isinstance(left, Obstacle):
            return True
        return bool(data(bare) != data(left))

    def _as_recorded(self, state: HostState, config: bytes) -> bool:
        """Return whether the record says that it is ours and unedited."""
        if state.record is None or state.record.edited:
            return False
        digests = state.record.files.get(self.path)
        return digests is not None and digests.made_by_us(config)

    def _found(self, state: HostState) -> Found | Obstacle:
        found = self.starter.found(state.bare)
        if isinstance(found, Obstacle):
            return Obstacle(f"{self.starter.path} {found}")
        return found

    def _known(self, state: HostState, found: Found) -> Percentages:
        """Return the values from before us, if ours has set its own.

        They are in the record; if that is lost, in the configuration from before us.
        """
        if not is_weighted(state.text, self.extender):
            return {}
        old = self.files.read(found.config) if found.config else None
        text = None if old is None else old.decode(errors="replace")
        return {**percentages(_parsed(text)), **state.scored}


def _parsed(text: str | None) -> Json:
    config = {} if text is None else read(text)
    return {} if isinstance(config, Obstacle) else config


@dataclass(frozen=True, slots=True)
class HostCertificates:
    """The TLS files in one folder of the host; every method reads them anew."""

    files: HostFiles
    folder: str

    def planned(self, now: datetime) -> Sequence[FileChange]:
        """Return the files to write: those missing, broken or due for renewal."""
        there = self._there()
        return [
            FileChange(
                self._path(name), there.get(name), one.content, one.mode, one.uid
            )
            for name, one in pki.plan(there, now).items()
        ]

    def stamp(self, planned: Sequence[FileChange]) -> str:
        """Return a text that changes when kube-scheduler must restart for them."""
        new = {PurePosixPath(each.path).name: each.after or b"" for each in planned}
        return pki.scheduler_stamp({**self._there(), **new})

    def paths(self) -> Sequence[str]:
        """Return the paths of the existing files."""
        return [self._path(name) for name in self.files.names(self.folder)]

    def for_scheduler(self) -> TlsFiles:
        """Return the files that our entry of ``extenders`` names."""
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


class SchedulerFiles:
    """All files of one host; every method reads them anew."""

    def __init__(self, files: HostFiles, starter: Starter, desired: Desired) -> None:
        self._files = files
        self._starter = starter
        self._desired = desired
        self.config = f"{starter.folder}/{CONFIG}"
        self.next = f"{self.config}.next"
        """Where a configuration lies while it is tried."""
        self.state = f"{starter.folder}/state.json"
        self.backup = f"{starter.folder}/backup/{PurePosixPath(starter.path).name}"
        self.certificates = HostCertificates(files, f"{starter.folder}/tls")

    def plan(self) -> Sequence[FileChange] | Obstacle:
        """Return the files to write, in order; none if all are as wanted."""
        state, desired = self._read(), self._desired
        if isinstance(state, Obstacle):
            return state
        built = self._configuration().built(state)
        if isinstance(built, Obstacle):
            return built
        tls = self.certificates.planned(desired.now) if desired.tls else ()
        main = self._starter.edited(state.main, self._ours(built.text, tls))
        if isinstance(main, Obstacle):
            return self._about(main)
        ours = [*tls, self._change(self.config, built.text, READABLE)]
        changes = [*ours, self._change(self._starter.path, main)]
        return [
            each for each in self._recorded(state, built, changes) if _differs(each)
        ]

    def restore(self) -> Sequence[FileChange] | Obstacle:
        """Return the files to put back or remove, in order; none if none is ours.

        A configuration of ours that somebody has edited stays, without our extender,
        and kube-scheduler goes on reading it.
        """
        state = self._read()
        if isinstance(state, Obstacle):
            return state
        is_read = self._starter.is_edited(state.main, self._ours("", ()))
        kept = self._configuration().kept(state) if is_read else None
        if isinstance(kept, Obstacle):
            return Obstacle(f"{self.config} {kept}")
        main: str | Obstacle | None = state.bare
        if kept is not None:
            main = self._starter.edited(state.main, self._ours(kept, ()))
        if isinstance(main, Obstacle):
            return self._about(main)
        others = (self.next, self.backup, self.state)
        gone = (*self._unfinished(), *self.certificates.paths(), *others)
        wanted = {self._starter.path: main, self.config: kept, **dict.fromkeys(gone)}
        changes = [self._change(path, text) for path, text in wanted.items()]
        return [each for each in changes if _differs(each)]

    def missing(self) -> str:
        """Return in words that somebody has undone our configuration, or ""."""
        record = Record.decoded(self._files.read(self.state))
        if record is None or self._starter.path not in record.files:
            return ""
        state = self._read()
        if isinstance(state, Obstacle):
            return str(state)
        if not self._starter.is_edited(state.main, self._ours("", ())):
            return (
                f"{self._starter.path} no longer names {self.config}, so "
                "kube-scheduler does not call the extender (kubeadm rewrites that file "
                "when it upgrades)"
            )
        if not has_stanza(state.text):
            return f"{self.config} no longer has our entry in extenders"
        return ""

    def make(self, changes: Sequence[FileChange]) -> None:
        """Write and remove files, then remove our folders if they are empty."""
        self._files.make(changes)
        for folder in ("/backup", "/tls", ""):
            self._files.remove_empty(f"{self._starter.folder}{folder}")

    def _read(self) -> HostState | Obstacle:
        content = self._files.read(self._starter.path)
        record = Record.decoded(self._files.read(self.state))
        backup = self._files.read(self.backup)
        try:
            main = None if content is None else content.decode()
        except UnicodeDecodeError:
            return self._about(Obstacle(f"is not UTF-8 text; {self._starter.remedy}"))
        bare = self._starter.bare(main, self._ours("", ()))
        digests = record.files.get(self._starter.path) if record else None
        if (
            digests
            and digest_of(content) == digests.after
            and digest_of(backup) == digests.before
        ):
            # The backup is more reliable than what we work out.
            bare = None if backup is None else backup.decode()
        if isinstance(bare, Obstacle):
            return self._about(bare)
        return HostState(main, bare, self._files.read(self.config), record)

    def _configuration(self) -> ConfigFile:
        desired = self._desired
        return ConfigFile(
            self._files,
            self._starter,
            self.config,
            desired.kubernetes,
            desired.extender,
            self.certificates.for_scheduler() if desired.tls else None,
            desired.frag,
        )

    def _unfinished(self) -> Sequence[str]:
        """Return the temporary files that a killed run has left."""
        folders = (str(PurePosixPath(self._starter.path).parent), self._starter.folder)
        return [
            f"{folder}/{name}"
            for folder in (*folders, f"{self._starter.folder}/backup")
            for name in self._files.names(folder)
            if name.startswith(".") and UNFINISHED in name
        ]

    def _recorded(
        self, state: HostState, built: BuiltConfig, changes: Sequence[FileChange]
    ) -> Sequence[FileChange]:
        """Put the record and the backup before the changes that they are about."""
        files = dict(state.record.files) if state.record else {}
        backup = self._change(self.backup, state.bare)
        for each in changes:
            main = each.path == self._starter.path
            before = digest_of(backup.after) if main else NONE
            was = digest_of(each.before)
            if not _differs(each) and each.path in files:
                was = files[each.path].was
            files[each.path] = Digests(before, was, digest_of(each.after))
        record = Record(self._desired.program, files, built.scored, built.edited)
        return [self._change(self.state, record.encoded().decode()), backup, *changes]

    def _ours(self, config: str, tls: Sequence[FileChange]) -> Ours:
        digest = hashlib.sha256(config.encode())
        if self._desired.tls:
            digest.update(self.certificates.stamp(tls).encode())
        return Ours(self.config, self._starter.folder, digest.hexdigest())

    def _change(self, path: str, after: str | None, mode: int = NEW_FILE) -> FileChange:
        content = None if after is None else after.encode()
        return FileChange(path, self._files.read(path), content, mode)

    def _about(self, obstacle: Obstacle) -> Obstacle:
        return Obstacle(f"{self._starter.path} {obstacle}")


def _differs(change: FileChange) -> bool:
    return change.before != change.after
