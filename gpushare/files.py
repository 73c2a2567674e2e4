"""Write files so that a reader sees the old content or the new one, never a part."""

import os
from pathlib import Path

PART = ".part"
"""How the name of a file ends that is being written; a kill may leave one behind."""


def replace_file(
    path: Path,
    content: str | bytes,
    *,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
    synced: bool = False,
    part: str = PART,
) -> None:
    """Write a file completely or not at all.

    It gets the mode whatever the umask is, and the owner (user and group), if one is
    given. ``synced``: it survives a power failure, too. The name of the file beside it
    begins with a dot, because kubelet heeds no such file, and ends with ``part``. On an
    ``OSError`` the old file is unchanged, and also after Ctrl-C none is left beside it.
    """
    unfinished = path.with_name(f".{path.name}{part}")
    try:
        with os.fdopen(_create(unfinished), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            # The mode first: after the owner has changed, this process may not.
            os.fchmod(file.fileno(), mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), *owner)
            if synced:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if synced:
        sync_folder(path.parent)


def _create(path: Path) -> int:
    """Open a new file for writing; what a kill has left there is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        path.unlink(missing_ok=True)
        return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Let a folder's new and removed entries survive a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
