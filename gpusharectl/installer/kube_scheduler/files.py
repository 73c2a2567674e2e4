"""Plan the files on one host that make kube-scheduler call the extender.

kubeadm and k3s differ only in their ``Starter``. ``SchedulerFiles.plan`` returns the
files in an order that leaves a working scheduler wherever it is interrupted: first the
record and the backup, then what kube-scheduler will read, at last the starter's file.

Three configurations play a part. The cluster's own one is what kube-scheduler read
before the first installation. gpushare's is written to a folder of its own: it is the
cluster's own one with the extender added. If somebody has edited gpushare's, the next
installation starts from that edited one. The record (``state.json``) tells by SHA-256
who changed a file. A record that cannot be read counts as none; then the files
themselves are compared.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

import yaml
from pydantic import BaseModel, ValidationError

from gpushare import __version__
from gpushare.kube.cluster import Json
from gpushare.kube.names import EXTENDER_PORT, EXTENDER_SERVER_NAME
from gpusharectl.installer import pki
from gpusharectl.installer.kube_scheduler.api_server import why_elsewhere
from gpusharectl.installer.kube_scheduler.config import (
    KIND,
    ConfigTarget,
    Percentages,
    has_other_weight,
    names_extender,
    overwritten_percentages,
    percentages,
    read_configuration,
    with_extender,
    with_frag_weight,
    without_extender,
)
from gpusharectl.installer.kube_scheduler.host_files import (
    NEW_FILE,
    UNFINISHED,
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.kube_scheduler.ports import (
    AT_BOOT,
    RESERVED,
    plan_released_ports,
    plan_reserved_ports,
)
from gpusharectl.installer.kube_scheduler.static_pod import Additions

CONFIG_NAME = "scheduler.yaml"
"""The name of gpushare's configuration in its folder."""
STAYS = "stays without the gpushare entry, because somebody has edited it"
READABLE = 0o644
"""The configuration has no secret, and a kube-scheduler without root has to read it."""


class FormerSetup(NamedTuple):
    """What kube-scheduler read before gpushare was installed."""

    config: str
    """Its own configuration on the host; "" for none."""
    flags: dict[str, str]


class Starter(Protocol):
    """The file that says how kube-scheduler is started. Pure; None is no file.

    The caller puts the file's name before an ``Obstacle``'s text.
    """

    path: str
    folder: str
    """The folder of gpushare's files."""
    remedy: str
    """What to do if the file is broken."""

    def kubeconfig(self, without_gpushare: str | None) -> str:
        """Return the kubeconfig's path if it is not among the flags, else ""."""
        ...

    def on_host(self, text: str | None, path: str) -> str:
        """Return the host's path of a file as kube-scheduler is told it."""
        ...

    def edit(self, text: str | None, additions: Additions) -> str:
        """Return the text with the additions; unchanged if it has them."""
        ...

    def without_gpushare(
        self, text: str | None, additions: Additions, backup: str | None = None
    ) -> str | None:
        """Return the text without the additions; None if nothing is left.

        ``backup`` is the text before them, which somebody may have edited since.
        """
        ...

    def is_edited(self, text: str | None, additions: Additions) -> bool:
        """Return whether kube-scheduler is told to read gpushare's configuration."""
        ...

    def former_setup(self, without_gpushare: str | None) -> FormerSetup:
        """Return what kube-scheduler reads according to a text without additions."""
        ...

    def overruled(self, files: HostFiles) -> str:
        """Return which other file makes this one ineffective, and the remedy, or ""."""
        ...


@dataclass(frozen=True, slots=True)
class FilesTarget:
    """What is wanted of the host."""

    program: str
    """The version of gpusharectl, for the record."""
    extender: Json
    """The extender's entry in ``extenders``, as it is shipped."""
    now: datetime
    tls: bool = False
    frag: bool = False
    """Whether the policy is ``frag``: all nodes are scored, and the extender's
    score outweighs all others."""


def make_files_target(*, tls: bool = False, frag: bool = False) -> FilesTarget:
    """Return what is wanted of a host now."""
    now = datetime.now(UTC)
    return FilesTarget(__version__, shipped_extender(), now, tls, frag)


def shipped_extender() -> Json:
    """Return the extender's shipped entry in ``extenders``: plain HTTP on loopback."""
    text = files("manifests").joinpath("scheduler-extender.yaml").read_text()
    (extender,) = yaml.safe_load(text)["extenders"]
    entry: Json = extender
    return entry


def frag_configuration(text: str) -> str:
    """Return the second scheduler's configuration for ``frag``; other text unchanged.

    The shipped configuration scores all nodes already.
    """
    if KIND not in text:
        return text
    config = yaml.safe_load(text)
    config["extenders"] = [with_frag_weight(each) for each in config["extenders"]]
    return yaml.safe_dump(config, sort_keys=False)


class Digests(BaseModel):
    """SHA-256 of one file at three times; "" if there was no file.

    ``before`` the first installation, as it ``was`` when this run began, and ``after``
    this run.
    """

    before: str
    was: str
    after: str


class HostRecord(BaseModel):
    """``state.json``: what was done to which files, and by which ``gpusharectl``."""

    gpusharectl: str
    files: dict[str, Digests]
    scored: Percentages = {}
    """The values of ``percentageOfNodesToScore`` that gpushare has overwritten."""
    edited: bool = False
    """Whether gpushare's configuration contains what somebody wrote into it."""
    unfinished: bool = False
    """Whether kube-scheduler was not seen running since the first installation."""

    @property
    def text(self) -> str:
        """The content of ``state.json``."""
        return f"{self.model_dump_json(indent=2, exclude_defaults=True)}\n"

    @classmethod
    def decoded(cls, content: bytes | None) -> "HostRecord | None":
        """Parse ``state.json``; None if there is none, or if it cannot be read."""
        try:
            return cls.model_validate_json(content or b"")
        except ValidationError:
            return None


@dataclass(frozen=True, slots=True)
class HostState:
    """What is on the host now."""

    main: str | None
    """The starter's file."""
    without_gpushare: str | None
    """The starter's file without gpushare's additions."""
    config: bytes | None
    """gpushare's configuration."""
    record: HostRecord | None

    @property
    def text(self) -> str:
        """The configuration as text."""
        return (self.config or b"").decode(errors="replace")

    @property
    def scored(self) -> Percentages:
        """The recorded values that the policy ``frag`` has overwritten."""
        return self.record.scored if self.record else {}


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
                f"{self.folder}/{name}",
                there.get(name),
                file.content,
                file.mode,
                file.uid,
            )
            for name, file in pki.plan_certificates(there, now).items()
        ]

    def stamp(self, planned: Sequence[FileChange]) -> str:
        """Return a text that changes when kube-scheduler must restart for them."""
        new = {PurePosixPath(each.path).name: each.after or b"" for each in planned}
        return pki.scheduler_stamp({**self._there(), **new})

    def paths(self) -> Sequence[str]:
        """Return the paths of the existing files."""
        return [f"{self.folder}/{name}" for name in self.files.names(self.folder)]

    def for_scheduler(self) -> Json:
        """Return the ``tlsConfig`` of the extender's entry in ``extenders``."""
        client = f"{self.folder}/{pki.SCHEDULER.name}"
        return {
            "caFile": f"{self.folder}/{pki.AUTHORITY}.crt",
            "certFile": f"{client}.crt",
            "keyFile": f"{client}.key",
            "serverName": EXTENDER_SERVER_NAME,
        }

    def _there(self) -> Mapping[str, bytes]:
        contents = {
            PurePosixPath(path).name: self.files.read(path) for path in self.paths()
        }
        return {name: text for name, text in contents.items() if text is not None}


class SchedulerFiles:
    """All files of one host; every method reads them anew."""

    def __init__(self, files: HostFiles, starter: Starter, target: FilesTarget) -> None:
        self._host_files = files
        self._starter = starter
        self._target = target
        self.config = f"{starter.folder}/{CONFIG_NAME}"
        self.next = f"{self.config}.next"
        """Where a configuration lies while it is tried."""
        self.state = f"{starter.folder}/state.json"
        self.backup = f"{starter.folder}/backup/{PurePosixPath(starter.path).name}"
        self.certificates = HostCertificates(files, f"{starter.folder}/tls")

    def plan(self) -> Sequence[FileChange]:
        """Return the files to write, in order; none if all are as wanted.

        ``Obstacle`` says why the extender cannot be added.
        """
        if overruled := self.overruled():
            raise Obstacle(overruled)
        state, target = self._read(), self._target
        text, record = self._built(state, target)
        tls = self.certificates.planned(target.now) if target.tls else ()
        with Obstacle.about(self._starter.path):
            main = self._starter.edit(state.main, self._additions(text, tls))
        changes = [
            *tls,
            self._change(self.config, text, READABLE),
            self._change(self._starter.path, main),
        ]
        backup = self._change(self.backup, state.without_gpushare)
        for each in changes:
            before = backup.after if each.path == self._starter.path else None
            old, was = record.files.get(each.path), digest_of(each.before)
            if old and not _differs(each):
                was = old.was
            record.files[each.path] = Digests(
                before=digest_of(before), was=was, after=digest_of(each.after)
            )
        # The record and the backup are written before what they are about.
        written = self._change(self.state, record.text)
        due = [*plan_reserved_ports(self._host_files), written, backup, *changes]
        return list(filter(_differs, due))

    def plan_restore(self) -> Sequence[FileChange]:
        """Return the files to put back or remove, in order; none if none is gpushare's.

        If somebody has edited gpushare's configuration, it stays, without the extender,
        and if kube-scheduler reads it, it goes on reading it. ``Obstacle`` if a file
        cannot be read.
        """
        state = self._read()
        main, is_read = state.without_gpushare, self._is_read(state)
        wanted: dict[str, str | None] = {self._starter.path: main, self.config: None}
        if self._is_edited(state):
            try:
                wanted[self.config] = without_extender(state.text, self._known(state))
            except Obstacle as obstacle:
                if is_read:
                    raise Obstacle(f"{self.config} {obstacle}") from obstacle
                del wanted[self.config]
            if is_read:
                # Without a stamp: by that an uninstall finds hosts that are set up.
                plain = replace(self._additions("", ()), stamp="")
                with Obstacle.about(self._starter.path):
                    wanted[self._starter.path] = self._starter.edit(state.main, plain)
        others = (self.next, self.backup, self.state)
        gone = (*self._unfinished(), *self.certificates.paths(), *others)
        wanted |= dict.fromkeys(gone)
        changes = [self._change(path, text) for path, text in wanted.items()]
        changes += plan_released_ports(self._host_files)
        return list(filter(_differs, changes))

    def overruled(self) -> str:
        """Return which other file makes the starter's ineffective, or ""."""
        return self._starter.overruled(self._host_files)

    def why_elsewhere(self) -> str:
        """Return why kube-scheduler uses no API server of this host, or "".

        That is said of its configuration as ``plan`` writes it; ``Obstacle`` as there.
        """
        state = self._read()
        text, _ = self._built(state, self._target)
        if master := self._former_setup(state).flags.get("master"):
            return (
                f"{self._starter.path} has --master={master}, and kube-scheduler uses "
                "that API server, not its kubeconfig's; remove the flag, or leave DRA "
                "off (--no-dra)"
            )
        kubeconfig = (read_configuration(text).get("clientConnection") or {}).get(
            "kubeconfig"
        ) or ""
        if not kubeconfig:
            return f"kube-scheduler's configuration in {self.config} has no kubeconfig"
        with Obstacle.about(self._starter.path):
            path = self._starter.on_host(state.main, str(kubeconfig))
        return why_elsewhere(self._host_files, path)

    @property
    def authority(self) -> bytes:
        """The certificate of the host's own authority; empty without TLS files."""
        path = f"{self.certificates.folder}/{pki.AUTHORITY}.crt"
        return self._host_files.read(path) or b""

    def are_read(self, changes: Sequence[FileChange]) -> bool:
        """Return whether kube-scheduler reads one of these files."""
        unread = (self.state, self.backup, AT_BOOT, RESERVED)
        return any(each.path not in unread for each in changes)

    @property
    def unfinished(self) -> bool:
        """Whether kube-scheduler was not seen running since the first installation."""
        record = HostRecord.decoded(self._host_files.read(self.state))
        return record is not None and record.unfinished

    def finish(self) -> None:
        """Record that kube-scheduler was seen running with these files."""
        record = HostRecord.decoded(self._host_files.read(self.state))
        if record is not None and record.unfinished:
            done = record.model_copy(update={"unfinished": False})
            self._host_files.write(self.state, done.text.encode())

    def why_undone(self) -> str:
        """Return in words how somebody has undone the configuration, or ""."""
        record = HostRecord.decoded(self._host_files.read(self.state))
        if record is None or self._starter.path not in record.files:
            return ""
        if overruled := self.overruled():
            return overruled
        try:
            state = self._read()
        except Obstacle as obstacle:
            return str(obstacle)
        if not self._is_read(state):
            return (
                f"{self._starter.path} no longer names {self.config}, so "
                "kube-scheduler does not call the extender (kubeadm rewrites that file "
                "when it upgrades)"
            )
        if not names_extender(state.text):
            return (
                f"{self.config} no longer has the gpushare entry in extenders, with "
                f"port {EXTENDER_PORT}"
            )
        return ""

    def make(self, changes: Sequence[FileChange]) -> None:
        """Write and remove files, then remove gpushare's folders if they are empty.

        The folder stays if the starter's file names it: a pod whose own mount of it
        has the type Directory does not start without it.
        """
        self._host_files.make(changes)
        top = self._starter.folder
        named = top.encode() in (self._host_files.read(self._starter.path) or b"")
        for folder in (f"{top}/backup", f"{top}/tls", *([] if named else [top])):
            self._host_files.remove_empty(folder)

    def _read(self) -> HostState:
        content = self._host_files.read(self._starter.path)
        record = HostRecord.decoded(self._host_files.read(self.state))
        backup = self._host_files.read(self.backup)
        digests = record.files.get(self._starter.path) if record else None
        with Obstacle.about(self._starter.path):
            try:
                main = None if content is None else content.decode()
            except UnicodeDecodeError:
                raise Obstacle(f"is not UTF-8 text; {self._starter.remedy}") from None
            former = None if backup is None else backup.decode(errors="replace")
            without_gpushare = self._starter.without_gpushare(
                main, self._additions("", ()), former
            )
        now = digest_of(content), digest_of(backup)
        if digests and now == (digests.after, digests.before):
            # The backup is more reliable than the text with the additions removed.
            without_gpushare = None if backup is None else backup.decode()
        return HostState(
            main, without_gpushare, self._host_files.read(self.config), record
        )

    def _is_read(self, state: HostState) -> bool:
        return self._starter.is_edited(state.main, self._additions("", ()))

    def _built(self, state: HostState, target: FilesTarget) -> tuple[str, HostRecord]:
        """Return gpushare's configuration to write, and the record without its files.

        It has the extender, and everything else as it was.
        """
        former, edited = self._former_setup(state), self._is_edited(state)
        source = self.config if edited else former.config
        old = self._host_files.read(source) if source else b""
        if old is None:
            raise Obstacle(f"{self._starter.path} names {source}, which does not exist")
        known = self._known(state) if edited else {}
        wanted = ConfigTarget(
            target.extender,
            former.flags,
            self._starter.kubeconfig(state.without_gpushare),
            self.certificates.for_scheduler() if target.tls else None,
            frag=target.frag,
            scored=known,
        )
        before = old.decode(errors="replace") if source else None
        with Obstacle.about(f"{source or self._starter.path}:"):
            text = with_extender(before, wanted)
        # Kept even if it is off now: a kill may come before the file is written.
        scored = state.scored if edited else {}
        if target.frag:
            scored = overwritten_percentages(_parsed(before), known)
        origin = f" from {former.config}" if former.config else ""
        head = f"# Made{origin} by gpusharectl install, which may be run again.\n"
        files, unfinished = {}, not self._is_read(state)
        if state.record:
            files, unfinished = dict(state.record.files), state.record.unfinished
        return head + text, HostRecord(
            gpusharectl=target.program,
            files=files,
            scored=scored,
            edited=edited,
            unfinished=unfinished,
        )

    def _is_edited(self, state: HostState) -> bool:
        """Return whether somebody has edited gpushare's configuration.

        If the record does not tell, it is compared with what gpushare would write.
        """
        if state.config is None:
            return False
        if state.record and not state.record.edited:
            written = state.record.files.get(self.config)
            if written and digest_of(state.config) in {written.was, written.after}:
                return False
        plain = replace(self._target, tls=False, frag=False)
        try:
            built, _ = self._built(replace(state, config=None, record=None), plain)
            plain_text = without_extender(built, {})
            rest = without_extender(state.text, self._known(state))
            return read_configuration(plain_text) != read_configuration(rest)
        except Obstacle:
            return True

    def _former_setup(self, state: HostState) -> FormerSetup:
        with Obstacle.about(self._starter.path):
            return self._starter.former_setup(state.without_gpushare)

    def _known(self, state: HostState) -> Percentages:
        """Return the cluster's own values, if gpushare's configuration overwrites them.

        They are in the record; if that is lost, in the cluster's own configuration.
        """
        if not has_other_weight(state.text, self._target.extender):
            return {}
        try:
            source = self._former_setup(state).config
        except Obstacle:
            return {}
        old = self._host_files.read(source) if source else None
        text = None if old is None else old.decode(errors="replace")
        return {**percentages(_parsed(text)), **state.scored}

    def _unfinished(self) -> Sequence[str]:
        """Return the temporary files that a killed run has left."""
        top = self._starter.folder
        folders = (str(PurePosixPath(self._starter.path).parent), top, f"{top}/backup")
        return [
            f"{folder}/{name}"
            for folder in folders
            for name in self._host_files.names(folder)
            if name.startswith(".") and UNFINISHED in name
        ]

    def _additions(self, config: str, tls: Sequence[FileChange]) -> Additions:
        digest = hashlib.sha256(config.encode())
        if self._target.tls:
            digest.update(self.certificates.stamp(tls).encode())
        return Additions(self.config, self._starter.folder, digest.hexdigest())

    def _change(self, path: str, after: str | None, mode: int = NEW_FILE) -> FileChange:
        content = None if after is None else after.encode()
        return FileChange(path, self._host_files.read(path), content, mode)


def kept_configuration(restored: Sequence[FileChange]) -> str:
    """Return the path of a configuration that ``plan_restore`` lets stay, or ""."""
    paths = [each.path for each in restored if each.after is not None]
    return next((path for path in paths if PurePosixPath(path).name == CONFIG_NAME), "")


def digest_of(content: bytes | None) -> str:
    """Return a content's SHA-256; "" if there is no file."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _differs(change: FileChange) -> bool:
    return change.before != change.after


def _parsed(text: str | None) -> Json:
    try:
        return {} if text is None else read_configuration(text)
    except Obstacle:
        return {}
