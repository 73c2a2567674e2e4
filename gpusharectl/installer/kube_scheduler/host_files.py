"""Read and write the files of one host; a write replaces the whole file or nothing.

Paths are given as the host has them. ``HostFiles.root`` is where the host is mounted:
``/`` on the host itself, ``/host`` in a Job. Every method raises ``OSError`` if the
disk is full or the rights are missing; the old file is then unchanged and no temporary
file is left.
"""

import contextlib
import difflib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath

from gpushare.files import replace_file, sync_folder
from gpushare.host_root import on_host

HostPath = str | PurePath
"""An absolute path as the host itself has it."""

NEW_FILE = 0o600
NEW_FOLDER = 0o755
"""Processes of other users must reach the files that are meant for them."""
UNFINISHED = ".gpushare-"
"""Part of the name of a file that is being written; only a kill leaves one behind."""
_KERNEL = "/proc/sys"
_SECRET = (".key", ".conf", ".kubeconfig")


class Obstacle(Exception):
    """Why something cannot be done: names the file or field, and the remedy."""

    @classmethod
    @contextlib.contextmanager
    def about(cls, path: str) -> Iterator[None]:
        """Put a file's name before the words of an obstacle."""
        try:
            yield
        except cls as obstacle:
            raise cls(f"{path} {obstacle}") from obstacle


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: ``before`` and ``after`` are its bytes, None if there is no file."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = NEW_FILE
    """For a new file; an existing file keeps its mode and its owner."""
    uid: int | None = None
    """The new owner; None keeps the present one."""

    def diff(self) -> str:
        """Return the change as ``diff -u`` shows it, without the contents of keys."""
        if PurePosixPath(self.path).suffix in _SECRET:
            verb = "create" if self.before is None else "change"
            if self.after is None:
                verb = "remove"
            return f"{verb} {self.path} (its contents are not shown)\n"
        lines = difflib.unified_diff(
            _lines(self.before),
            _lines(self.after),
            "/dev/null" if self.before is None else self.path,
            "/dev/null" if self.after is None else self.path,
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )

    def reversed(self) -> "FileChange":
        """Return the change that undoes this one."""
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The files of one host, below ``root``."""

    root: Path = Path("/")

    def read(self, path: HostPath) -> bytes | None:
        """Return a file's bytes; None if there is no file."""
        try:
            return self.place(path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, folder: HostPath) -> tuple[str, ...]:
        """Return the names in a folder, sorted; empty if there is no folder."""
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
        """Replace a file atomically: a reader sees the old content or the new one.

        An existing file keeps its mode and owner, unless ``uid`` is given. Missing
        folders are created. The name of the temporary file begins with a dot, because
        kubelet starts every other file in the folder of static pods. A setting of the
        kernel's is written as it is.
        """
        place = self.place(path)
        if PurePosixPath(path).is_relative_to(_KERNEL):
            place.write_bytes(content)
            return
        _make_folder(place.parent)
        mode, owner = _rights(place, mode, uid)
        part = f"{UNFINISHED}{os.getpid()}"
        try:
            replace_file(place, content, mode=mode, owner=owner, synced=True, part=part)
        except OSError as error:
            # A full disk has no name, and nobody knows the temporary one.
            error.filename, error.filename2 = str(path), None
            raise

    def remove(self, path: HostPath) -> None:
        """Remove a file if it exists."""
        place = self.place(path)
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
            sync_folder(place.parent)

    def remove_empty(self, folder: HostPath) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(OSError):
            self.place(folder).rmdir()

    def make(self, changes: Iterable[FileChange]) -> None:
        """Write and remove files, in the given order."""
        for change in changes:
            if change.after is None:
                self.remove(change.path)
            else:
                self.write(change.path, change.after, change.mode, change.uid)

    def place(self, path: HostPath) -> Path:
        """Return where a file of the host lies from here, by the host's links."""
        return on_host(path, self.root)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents with the same mode, whatever the umask is."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(NEW_FOLDER)


def _rights(old: Path, mode: int, uid: int | None) -> tuple[int, tuple[int, int]]:
    """Return the mode, and owner and group, for a file that is written anew."""
    try:
        there = old.stat()
    except FileNotFoundError:
        return mode, (os.geteuid() if uid is None else uid, os.getegid())
    if uid is not None:
        return mode, (uid, there.st_gid)
    return stat.S_IMODE(there.st_mode), (there.st_uid, there.st_gid)


def _lines(content: bytes | None) -> list[str]:
    return (content or b"").decode(errors="replace").splitlines(keepends=True)
