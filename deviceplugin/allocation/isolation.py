"""What holds a container to its share of a card's memory: the node's isolation tier.

Tier ``driver``: NVIDIA's driver holds the container's control group to a hard limit,
which a hook of the CDI specification sets before the container starts. It reads two
variables, which a CDI specification for each container sets. Where one of the parts is
missing, containers would fail or run without a limit, so all parts are checked first.

Tier ``preload``: a library (``isolation/preload``), which is in the device plugin's
image, counts what a container's programs allocate. The node gets a copy of it, which
containers mount beside a file that lets each program load it first. What a container
may have is in its folder of ``/etc/vcuda``, and what it has is counted in its region.

A limit is the container's share, and CUDA's contexts are counted in it. So on a card
the limits of containers with memory never add up to more than its units.
"""

import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename
from threading import Lock
from typing import Literal, Protocol

from deviceplugin.allocation.cdi import HOOK, sees_host, specified
from deviceplugin.allocation.records import give_way
from gpushare.cards.source import FoundCard
from gpushare.domain.model import UNIT_MIB, CardUUID
from gpushare.files import replace_file
from gpushare.host_root import exists_on_host
from gpushare.kube import names
from gpushare.kubelet.pods import HardLimit

logger = logging.getLogger(__name__)

Tier = Literal["none", "driver", "preload"]
TIERS: tuple[Tier, ...] = ("none", "driver", "preload")
IsolationChoice = Literal["auto"] | Tier
ISOLATION_CHOICES: tuple[IsolationChoice, ...] = (*TIERS, "auto")

LIBRARY = f"{names.LIBRARY_FOLDER}/libvcuda.so.1"
"""Tier ``preload``: the library, in the device plugin's image and in containers."""
_FIRST_BRANCH = 615
"""The first branch of NVIDIA's driver with limits by control group."""
_LOOKS = 3
"""After so many looks in a row that say so ``auto`` takes another tier."""
_MIG_PREFIX = "MIG-"
_BUILT_FOR = "x86_64"


@dataclass(frozen=True, slots=True)
class NodeLimitSupport:
    """What the checks need to know of a node.

    ``driver`` is NVML's version, empty if unknown. ``injection`` is how cards come into
    containers.
    """

    driver: str
    cgroup2: bool
    injection: str
    lacks: str = ""
    """What of the host is missing to give containers their limits; empty if nothing."""


@dataclass(frozen=True, slots=True)
class CardLimitSupport:
    """What the checks need to know of a card.

    ``refused`` is why the driver limits no memory on it, empty if it does. ``hooked``
    says whether the CDI specification has the hook for it.
    """

    card: FoundCard
    refused: str
    hooked: bool


def why_not_driver(node: NodeLimitSupport, card: CardLimitSupport) -> str:
    """Say which check of tier ``driver`` a card fails first; empty if it passes all."""
    if not card.card.known_to_driver or card.card.simulated:
        return "it is not a card of NVIDIA's driver"
    if card.card.uuid.startswith(_MIG_PREFIX):
        return "it is a MIG instance, whose memory the driver does not limit"
    branch = node.driver.partition(".")[0]
    if not branch.isdecimal() or int(branch) < _FIRST_BRANCH:
        version = node.driver or "of unknown version"
        return f"the driver is {version}, memory limits need {_FIRST_BRANCH} or newer"
    if card.refused:
        return card.refused
    if not node.cgroup2:
        return "the node has cgroup v1, memory limits need cgroup v2"
    if node.injection != "cdi":
        return (
            f"cards are injected by {node.injection}, the hook that sets memory limits "
            "needs GPUSHARE_INJECT=cdi"
        )
    if node.lacks:
        return node.lacks
    if not card.hooked:
        return (
            f"no CDI specification has the hook {HOOK} for it; write it again with "
            "nvidia-ctk cdi generate of nvidia-container-toolkit 1.20.1 or newer"
        )
    return ""


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


def _put(path: Path, wanted: bytes, mode: int) -> None:
    same = path.is_file() and path.read_bytes() == wanted
    if same and stat.S_IMODE(path.stat().st_mode) == mode:
        return
    give_way(path)
    replace_file(path, wanted, mode=mode)


def limits_text(card: CardUUID, limit: HardLimit, context_mib: int) -> str:
    """Return the file by which the library knows a container's limit on its card.

    ``context_mib`` is counted in it for each process that makes a context.
    """
    if limit.counts_contexts:
        return f"vcuda-limits 2\ncard {card} {limit.mib} {context_mib}\n"
    return f"vcuda-limits 1\ncard {card} {limit.mib}\n"


def why_no_single_card(cards: Collection[CardUUID]) -> str:
    """Say why the library cannot limit a container with these cards; else empty."""
    if len(cards) == 1:
        return ""
    return f"the container has a share of {len(cards)} cards, and its limit is for one"


class LimitsSource(Protocol):
    """The driver, as far as it tells of limits; ``NvmlCards`` is the real one."""

    def driver_version(self) -> str:
        """Return the driver's version; empty if it does not answer."""
        ...

    def why_no_limits(self, uuids: Iterable[CardUUID]) -> Mapping[CardUUID, str]:
        """Return why the driver limits no memory on each card; empty where it does."""
        ...


@dataclass(frozen=True, slots=True)
class TierChecks:
    """Collects what the checks need to know: of the driver, the host and CDI.

    ``root`` is where the host's ``/sys`` is found, ``folders`` where its CDI
    specifications are. ``library`` is what tier ``preload`` puts on the node.
    """

    driver: LimitsSource
    root: Path
    folders: Sequence[Path]
    injection: Callable[[], str]
    library: NodeLibrary
    machine: str = field(default_factory=lambda: os.uname().machine)

    def failed(self, tier: Tier, cards: Sequence[FoundCard]) -> Mapping[CardUUID, str]:
        """Return which of these cards cannot have the tier now, each with the reason.

        For tier ``preload`` the library is put on the node if it is not there.
        """
        if tier == "preload":
            library = self.library.install()
            reasons = [
                (card, why_not_preload(card, self.machine, library)) for card in cards
            ]
        else:
            node, of_cards = self.facts(cards)
            reasons = [
                (support.card, why_not_driver(node, support)) for support in of_cards
            ]
        return {
            card.uuid: f"isolation tier {tier}: {why}" for card, why in reasons if why
        }

    def facts(
        self, cards: Sequence[FoundCard]
    ) -> tuple[NodeLimitSupport, Sequence[CardLimitSupport]]:
        """Look at the node and at these cards now."""
        # The file is in every group of v2, and in none of v1.
        cgroup2 = (self.root / "sys/fs/cgroup/cgroup.controllers").exists()
        node = NodeLimitSupport(
            self.driver.driver_version(), cgroup2, self.injection(), self._lacks()
        )
        uuids = [card.uuid for card in cards if card.known_to_driver]
        refused = self.driver.why_no_limits(uuids)
        hooks = specified(self.folders)
        return node, [
            CardLimitSupport(
                card,
                refused.get(card.uuid, ""),
                HOOK in hooks.get(card.uuid, frozenset()),
            )
            for card in cards
        ]

    def _lacks(self) -> str:
        cdi = self.folders[-1]
        if cdi.exists() and not os.access(cdi, os.W_OK):
            return (
                f"{cdi} cannot be written, where the limit of each container is put; "
                "mount it without readOnly, as the manifest of this version does"
            )
        shell = exists_on_host("/bin/sh", self.root) or not sees_host(self.root)
        return "" if shell else "the host has no /bin/sh, which runs NVIDIA's hook"


class ChoiceFile:
    """What ``auto`` has chosen of ``subject``, kept over restarts.

    An error with the file is only logged. Without a path nothing is kept.
    """

    def __init__(self, path: Path | None, subject: str) -> None:
        self._path = path
        self._subject = subject
        self._kept = ""

    def read(self) -> str:
        """Return the last choice; empty if it is not known."""
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._kept = self._path.read_text().strip()
        return self._kept

    def keep(self, chosen: str) -> None:
        """Write a choice that is new."""
        if self._path is None or chosen == self._kept:
            return
        self._kept = chosen
        try:
            self._path.write_text(f"{chosen}\n")
        except OSError as error:
            facts = {"because": str(error)}
            logger.warning("%s cannot be kept", self._subject, extra=facts)


class IsolationChooser:
    """Chooses the node's tier, and holds back the cards that cannot have it.

    By name, a card that fails a check is held back, and checked at each look. ``auto``
    takes ``driver`` where all cards pass, at the first look, and ``none`` else. Later
    it changes when three looks in a row say so, because each change is a write of the
    node. It never takes ``preload``. Containers that exist keep what they have.
    ``file`` keeps the choice of ``auto`` over restarts.
    """

    def __init__(
        self,
        choice: IsolationChoice,
        context_mib: int,
        checks: "TierChecks",
        file: Path | None = None,
    ) -> None:
        self._choice = choice
        self._checks = checks
        self._file = ChoiceFile(file, "isolation")
        self.context_mib = context_mib
        """MiB that tier ``preload`` counts for the CUDA context of a process."""
        self._logged = ("", "")
        self._passed: frozenset[CardUUID] = frozenset()
        self.tier: Tier = self._before() if choice == "auto" else choice
        """The tier of containers that are allocated now."""
        self.held_back: Mapping[CardUUID, str] = {}
        """The cards that fail a check of their tier, each with the reason."""
        self._other_looks = 0 if self.tier == "driver" else _LOOKS - 1
        """How many looks in a row have said that the other tier is right."""

    def choose_for(self, cards: Sequence[FoundCard]) -> None:
        """Check these cards, which are well otherwise."""
        if self._choice == "none" or not cards:
            return
        wanted: Tier = "driver" if self._choice == "auto" else self._choice
        failed = self._checks.failed(wanted, cards)
        self._passed = frozenset(c.uuid for c in cards if c.uuid not in failed)
        if self._choice == "auto":
            self._auto(failed)
        self.held_back = {} if self.tier == "none" else failed
        self._log(failed)

    def _auto(self, failed: Mapping[CardUUID, str]) -> None:
        right: Tier = "none" if failed else "driver"
        self._other_looks = 0 if right == self.tier else self._other_looks + 1
        if self._other_looks == _LOOKS:
            self.tier, self._other_looks = right, 0
            self._file.keep(right)

    def _log(self, failed: Mapping[CardUUID, str]) -> None:
        because = "the settings say so" if self._choice != "auto" else "all checks pass"
        if failed:
            uuid = min(failed)
            because = f"card {uuid}: {failed[uuid]}"
        elif self.tier == "none":
            because = "a check failed a moment ago"
        if (self.tier, because) != self._logged:
            facts = {"tier": self.tier, "because": because}
            logger.info("isolation of containers", extra=facts)
        self._logged = (self.tier, because)

    def why_refused(self, cards: Iterable[FoundCard]) -> str:
        """Say why a container may not have these cards now; empty if it may."""
        if self.tier == "none":
            return ""
        unchecked = f"isolation tier {self.tier}: not checked yet"
        for card in cards:
            if card.uuid not in self._passed:
                return f"card {card.uuid}: {self.held_back.get(card.uuid, unchecked)}"
        return ""

    def limit(self, units: int | None, tier: Tier | None = None) -> HardLimit | None:
        """Return a container's hard limit; None if it has none.

        ``units`` is None for a container that needs no limit, such as one with whole
        cards. One of cores alone can make a context and nothing else: a limit of 0 may
        mean none to the driver. ``tier`` is of a container that was allocated before.
        """
        tier = tier or self.tier
        if tier == "none" or units is None:
            return None
        mib = units * UNIT_MIB or self.context_mib
        return HardLimit(tier, mib, mib)

    def _before(self) -> Tier:
        return "driver" if self._file.read() == "driver" else "none"


def tier_named(text: str) -> Tier:
    """Return the tier of this name; ``none`` for any other text."""
    return next((tier for tier in TIERS if tier == text), "none")
