"""Tier ``preload``: what its library needs on the node and in a container.

The library (``isolation/preload``) is in the device plugin's image. The node gets a
copy of it, which containers mount beside a file that lets each program load it first.
What a container may have is in its folder of ``/etc/vcuda``, and what it has is counted
in its region.
"""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename
from threading import Lock

from deviceplugin.allocation.response import LIBRARY
from gpushare.cards.source import FoundCard
from gpushare.domain.model import CardUUID
from gpushare.files import replace_file
from gpushare.kube import names

LIMITS = "limits"
"""The file with the container's limit, in its folder of ``/etc/vcuda``."""
MOST_REGION_BYTES = 1 << 20
"""Above the size of any region. A container can make its own larger."""
_BUILT_FOR = "x86_64"


def why_not_preload(card: FoundCard, machine: str, library: str) -> str:
    """Say which check of tier ``preload`` a card fails first; empty if it passes all.

    ``machine`` is the node's processor as ``uname`` names it. ``library`` is why the
    library is not on the node, empty if it is.
    """
    if not card.known_to_driver or card.simulated:
        return "it is not a card of NVIDIA's driver"
    if machine != _BUILT_FOR:
        return f"the node's processor is {machine}, and the library is for {_BUILT_FOR}"
    return library


@dataclass(frozen=True, slots=True)
class NodeLibrary:
    """The library and the file that names it, in a folder of the node.

    ``source`` is the library in this image.
    """

    folder: Path
    source: Path
    _lock: Lock = field(default_factory=Lock)

    @property
    def library(self) -> Path:
        """The copy that containers mount as ``LIBRARY``."""
        return self.folder / basename(LIBRARY)

    @property
    def preload(self) -> Path:
        """What containers mount as ``PRELOAD_FILE``."""
        return self.folder / basename(names.PRELOAD_FILE)

    def install(self) -> str:
        """Write what is missing or altered; return why not, empty if all is there.

        A file is replaced as a whole: containers that run keep what they have mounted.
        """
        try:
            wanted = self.source.read_bytes()
        except OSError as error:
            return (
                f"the device plugin has no library {self.source} ({error.strerror}); "
                "use an image that was built for x86-64"
            )
        try:
            with self._lock:
                self.folder.mkdir(parents=True, exist_ok=True)
                _put(self.library, wanted, 0o755)
                _put(self.preload, f"{LIBRARY}\n".encode(), 0o644)
                unusable = os.statvfs(self.folder).f_flag & os.ST_NOEXEC
        except OSError as error:
            why = f"{self.folder} cannot be written: {error.strerror}"
            return f"{why}; it is needed for the library"
        if unusable:
            return (
                f"{self.folder} is mounted with noexec, so no program could load the "
                "library; mount it without, or set GPUSHARE_STATE_DIR to another folder"
            )
        return ""


def limits_text(card: CardUUID, limit_mib: int) -> str:
    """Return the file by which the library knows a container's limit on its card."""
    return f"vcuda-limits 1\ncard {card} {limit_mib}\n"


def why_no_single_card(cards: Collection[CardUUID]) -> str:
    """Say why the library cannot limit a container with these cards; else empty."""
    if len(cards) == 1:
        return ""
    return f"the container has a share of {len(cards)} cards, and its limit is for one"


def make_region(path: Path) -> None:
    """Make the region anew: empty, and writable for every user of the container.

    It is another file than before. A container that runs keeps the old one mounted, and
    one that starts has nothing of what was counted or damaged before.
    """
    _give_way(path)
    replace_file(path, b"", mode=0o666)


def cut_region(path: Path) -> bool:
    """Shorten a region that its container has made too large; return whether it was."""
    try:
        if path.stat().st_size <= MOST_REGION_BYTES:
            return False
        os.truncate(path, MOST_REGION_BYTES)
    except OSError:
        # It has none, or it was removed meanwhile.
        return False
    return True


def _put(path: Path, wanted: bytes, mode: int) -> None:
    same = path.is_file() and path.read_bytes() == wanted
    if same and stat.S_IMODE(path.stat().st_mode) == mode:
        return
    _give_way(path)
    replace_file(path, wanted, mode=mode)


def _give_way(path: Path) -> None:
    """Remove the empty folder that a runtime makes where a file to mount is missing."""
    if path.is_dir():
        path.rmdir()
