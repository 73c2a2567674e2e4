"""Find the files of a host that is mounted somewhere, such as at ``/host``."""

from collections import deque
from errno import ELOOP
from pathlib import Path, PurePath, PurePosixPath

_MOST_LINKS = 40


def on_host(path: str | PurePath, root: Path) -> Path:
    """Return where a path of the host lies below ``root``; nothing need be there.

    Symbolic links are followed as the host would: a link to ``/data/etc`` means
    ``/data`` of that host. ``OSError`` if they lead in a circle.
    """
    place, parts = root, deque(PurePosixPath("/", path).parts[1:])
    links = 0
    while parts:
        part = parts.popleft()
        if part == "..":
            place = place if place == root else place.parent
            continue
        step = place / part
        if not step.is_symlink():
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(ELOOP, "leads through too many symbolic links", str(path))
        target = PurePosixPath(step.readlink())
        if target.is_absolute():
            place = root
        parts.extendleft(part for part in reversed(target.parts) if part != "/")
    return place


def exists_on_host(path: str, root: Path) -> bool:
    """Return whether a path of the host exists below ``root``, by the host's links."""
    try:
        return on_host(path, root).exists()
    except OSError as error:
        if error.errno == ELOOP:
            return False
        raise
