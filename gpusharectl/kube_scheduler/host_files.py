"""Files of a host, written whole or not at all.

``HostFiles.read``, ``write``, ``remove``, ``mode`` take paths as the host has them;
``root`` lets a Job work on a host that is mounted at ``/host``, and a test on a folder.
``FileChange`` is one file before and after: what ``--dry-run`` shows and ``apply``
writes. Every method raises ``OSError`` where the disk or the rights say no; the old
file then stands as it was, and nothing else lies beside it.

A step that is not taken, and why, in words for who reads the terminal.
"""

import contextlib
import difflib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath

HostPath = str | PurePath
"""An absolute path as the host itself has it."""

NEW_FILE = 0o600
NEW_FOLDER = 0o755
"""Whoever runs as another user must reach what is meant for them."""
UNFINISHED = ".gpushare-"
"""In the name of a file that is being written; only a kill leaves one."""
_MOST_LINKS = 40
_SECRET = (".key", ".conf", ".kubeconfig")


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: ``before`` and ``after`` are its bytes, None where there is none."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = NEW_FILE
    """For a file that is new; one that is there keeps its own, and its owner."""
    uid: int | None = None
    """Whose the file is to be; None leaves it with whoever has it, else with us."""

    def diff(self) -> str:
        """Show the change as ``diff -u`` does; never what is in a key."""
        if PurePosixPath(self.path).suffix in _SECRET:
            return f"{self._verb()} {self.path} (its contents are not shown)\n"
        lines = difflib.unified_diff(
            _lines(self.before),
            _lines(self.after),
            "/dev/null" if self.before is None else self.path,
            "/dev/null" if self.after is None else self.path,
        )
        return "".join(_ended(line) for line in lines)

    def reversed(self) -> "FileChange":
        """Give the change that undoes this one."""
        return replace(self, before=self.after, after=self.before)

    def _verb(self) -> str:
        if self.after is None:
            return "remove"
        return "create" if self.before is None else "change"


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The files of one host, below ``root``."""

    root: Path = Path("/")

    def read(self, path: HostPath) -> bytes | None:
        """Give a file's bytes; None where there is none."""
        try:
            return self.place(path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, folder: HostPath) -> tuple[str, ...]:
        """Give the names in a folder, sorted; none where there is no folder."""
        try:
            return tuple(sorted(each.name for each in self.place(folder).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def write(
        self,
        path: HostPath,
        content: bytes,
        mode: int = NEW_FILE,
        uid: int | None = None,
    ) -> None:
        """Put a file in place whole; whoever reads sees the old one or the new one.

        One that is there keeps its mode and owner, else it gets ``mode``; with ``uid``
        it gets both. Folders are made. The unfinished file's name begins with a dot,
        because kubelet runs whatever else lies among the static pods.
        """
        place = self.place(path)
        _make_folder(place.parent)
        unfinished = place.with_name(f".{place.name}{UNFINISHED}{os.getpid()}")
        try:
            _fill(unfinished, content, _rights(place, mode, uid))
            unfinished.replace(place)
        finally:
            # Also on a full disk and on Ctrl-C; after the rename there is none.
            unfinished.unlink(missing_ok=True)
        _settle(place.parent)

    def remove(self, path: HostPath) -> None:
        """Remove a file; no matter if there is none."""
        place = self.place(path)
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
            _settle(place.parent)

    def remove_empty(self, folder: HostPath) -> None:
        """Remove a folder in which nothing lies; leave any other."""
        with contextlib.suppress(OSError):
            self.place(folder).rmdir()

    def make(self, changes: Iterable[FileChange]) -> None:
        """Write and remove, one file after the other."""
        for change in changes:
            if change.after is None:
                self.remove(change.path)
            else:
                self.write(change.path, change.after, change.mode, change.uid)

    def place(self, path: HostPath) -> Path:
        """Say where a file lies from here, by links as the host reads them.

        A link to ``/data/etc`` on a mounted host means that host's own ``/data``.
        """
        found, left = self.root, [*PurePosixPath(path).parts[1:]]
        links = 0
        while left:
            part = left.pop(0)
            if part == "..":
                found = found if found == self.root else found.parent
                continue
            step = found / part
            if not step.is_symlink():
                found = step
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"{path} leads through too many links")
            target = PurePosixPath(step.readlink())
            if target.is_absolute():
                found = self.root
            left = [part for part in target.parts if part != "/"] + left
        return found


def _make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, with one mode whatever the umask is."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(NEW_FOLDER)


@dataclass(frozen=True, slots=True)
class _Rights:
    mode: int
    uid: int
    gid: int


def _rights(old: Path, mode: int, uid: int | None) -> _Rights:
    try:
        there = old.stat()
    except FileNotFoundError:
        return _Rights(mode, os.geteuid() if uid is None else uid, os.getegid())
    if uid is not None:
        return _Rights(mode, uid, there.st_gid)
    return _Rights(stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid)


def _fill(unfinished: Path, content: bytes, rights: _Rights) -> None:
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(unfinished, flags, NEW_FILE), "wb") as file:
        file.write(content)
        file.flush()
        # In this order, because whoever gives it away may no longer change its mode.
        os.fchmod(file.fileno(), rights.mode)
        if (rights.uid, rights.gid) != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), rights.uid, rights.gid)
        os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """Let the folder's new entries outlast a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").splitlines(keepends=True)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way, naming the file or field, and what to do about it."""

    words: str

    def __str__(self) -> str:
        return self.words
