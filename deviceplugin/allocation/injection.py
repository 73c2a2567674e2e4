"""What a container gets, and how its cards come in: CDI, NVIDIA's variable, or nodes.

kubelet merges the answers for cores and for memory, and takes either of two values of
one key (contracts 2.3). So both answers have the same value for each key that both
have.

A container is told its share of memory and cores in environment variables. Nothing
enforces them, except for a hard limit of memory (``isolation``).
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename

from deviceplugin.allocation.cdi import (
    CDI_KIND,
    LIMIT_KIND,
    lost_files,
    sees_host,
    specified,
)
from deviceplugin.allocation.isolation import (
    LIBRARY,
    ChoiceFile,
    IsolationChooser,
    NodeLibrary,
    limits_text,
    why_no_single_card,
)
from deviceplugin.settings import INJECTIONS, Injection, InjectionChoice
from gpushare.cards.source import FoundCard
from gpushare.domain.model import UNIT_MIB, CardUUID
from gpushare.host_root import exists_on_host
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.limit_files import REGION
from gpushare.kubelet.pods import HardLimit

logger = logging.getLogger(__name__)

MEMORY_LIMIT = "VCUDA_MEMORY_LIMIT_MIB"
"""Variable: MiB of card memory that the container asked for."""
CORES = "VCUDA_CORES"
"""Variable: hundredths of a card's compute that the container asked for."""
REGION_INSIDE = f"{names.REGION_FOLDER}/region"
"""The file in which the library counts what a container uses."""
CONTROL_NODE = "/dev/nvidiactl"
"""The device node that each container with an NVIDIA card needs beside the card's."""
CUDA_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""Those that only CUDA needs; the driver makes them when CUDA is first used."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_CDI_KUBELET = (1, 31)
"""CDI names in a device plugin's answers need no feature gate since then."""
_CDI_CONTAINERD = (2, 0)
"""Reads CDI specifications by default since then; before, only if configured."""
_MISSES = 3
"""After so many looks in a row without a specification ``auto`` leaves CDI, or holds
back the card that the specification does not have."""


class InjectionChooser:
    """Chooses how cards are injected, for the whole node, and logs the reason.

    A card that cannot be injected in that way is held back. ``file`` keeps the choice
    of ``auto`` over restarts, because only the API server tells what the runtime can
    do, and it may be out of reach when the first pods come. The choice also stays while
    the runtime is away. A device whose host paths do not exist counts as not
    specified, if the host's files are below ``root``.
    """

    def __init__(
        self,
        choice: InjectionChoice,
        folders: Sequence[Path],
        status: Callable[[], Json],
        file: Path | None = None,
        *,
        root: Path = Path("/"),
    ) -> None:
        self._choice = choice
        self._folders = folders
        self._status = status
        self._file = ChoiceFile(file, "injection")
        self._root = root
        self._lost: Mapping[CardUUID, str] = {}
        self._logged = ("", "")
        self._missing_before: frozenset[str] = frozenset()
        self._misses = 0
        kept = self._file.read()
        self._before = next((way for way in INJECTIONS if way == kept), None)
        self._unseen: dict[CardUUID, int] = {}
        self.chosen: Injection = self._before or "env"
        """The last choice."""
        self.held_back: Mapping[CardUUID, str] = {}
        """The cards that cannot be injected in that way, each with the reason.

        Empty if the settings chose the way: the administrator may know better.
        """

    @property
    def because(self) -> str:
        """The reason of the last choice; empty before the first look."""
        return self._logged[1]

    def why_unread(self) -> str:
        """Say why CDI specifications may not be read here; empty if nothing says so.

        What is not read is not injected either, and nobody is told: a container would
        start with all cards that its image asks for.
        """
        status = self._status()
        if self._choice == "cdi" or not _names_runtime(status):
            return ""
        return _why_not_read(status["nodeInfo"])

    def specified(self) -> frozenset[CardUUID]:
        """Return the cards that a CDI specification can bring into a container now."""
        return frozenset(specified(self._folders).keys() - self._lost_now().keys())

    def missing_nodes(self) -> frozenset[str]:
        """Return those of ``CUDA_NODES`` that the host does not have now; logged once.

        Empty if cards come in another way than by device nodes, or if the host's
        ``/dev`` is not below ``root``. Ask for each container, because the driver makes
        these nodes at any time.
        """
        if self.chosen != "nodes" or self._root == Path("/"):
            return frozenset()
        if not exists_on_host(CONTROL_NODE, self._root):
            return frozenset()
        missing = frozenset(
            node for node in CUDA_NODES if not exists_on_host(node, self._root)
        )
        if missing - self._missing_before:
            logger.warning(
                "device nodes left out",
                extra={
                    "nodes": ",".join(sorted(missing)),
                    "because": "the host does not have them; CUDA needs them, and "
                    "nvidia-modprobe -u -c 0 makes them",
                },
            )
        self._missing_before = missing
        return missing

    def _lost_now(self) -> Mapping[CardUUID, str]:
        can_look = sees_host(self._root)
        return lost_files(self._folders, self._root) if can_look else {}

    def choose_for(self, cards: Iterable[CardUUID]) -> None:
        """Choose for these cards; call it whenever something may have changed."""
        wanted = frozenset(cards)
        self._lost = self._lost_now()
        missing = wanted - (specified(self._folders).keys() - self._lost.keys())
        if self._choice == "auto":
            # The looks without each card; one never seen is held back at once.
            self._unseen = {
                uuid: self._unseen.get(uuid, _MISSES) + 1 if uuid in missing else 0
                for uuid in wanted
            }
            chosen, why = self._auto(wanted, missing)
            self._misses = 0 if chosen == "cdi" else self._misses + 1
            if self._may_be_cdi_again() and 0 < self._misses < _MISSES:
                # The specification may be being rewritten just now.
                return
            held_back = (uuid for uuid in missing if self._unseen[uuid] >= _MISSES)
            self.held_back = {
                uuid: self._not_specified(uuid) for uuid in held_back if chosen == "cdi"
            }
        else:
            chosen, why = self._choice, "the settings say so"
            if chosen == "cdi" and missing:
                why += f", but {self._not_specified(min(missing))}"
        if (chosen, why) != self._logged:
            logger.info("injecting cards", extra={"by": chosen, "because": why})
        self._logged, self.chosen = (chosen, why), chosen
        if self._choice == "auto" and _names_runtime(self._status()):
            self._before = chosen
            self._file.keep(chosen)

    def _may_be_cdi_again(self) -> bool:
        """Return whether it was CDI at the last look, or before the restart."""
        if not self._logged[0]:
            return self._before == "cdi" and not _why_no_cdi(self._status())
        return self._logged[0] == "cdi"

    def _auto(
        self, wanted: frozenset[CardUUID], missing: frozenset[CardUUID]
    ) -> tuple[Injection, str]:
        status = self._status()
        if self._before is not None and not _names_runtime(status):
            return (
                self._before,
                "as before; the node's status does not name the runtime just now",
            )
        no_cdi = _why_no_cdi(status)
        if not no_cdi and wanted and wanted == missing:
            no_cdi = self._not_specified(min(missing))
        if not no_cdi:
            why = "kubelet and the runtime support it, and there is a CDI specification"
            unseen = "; whether the files that it names exist cannot be seen from here"
            return "cdi", why if sees_host(self._root) else f"{why}{unseen}"
        handlers = status.get("runtimeHandlers")
        named = [str(handler.get("name", "")) for handler in handlers or ()]
        if handlers is None or any("nvidia" in name for name in named):
            return "env", f"not CDI: {no_cdi}"
        return "nodes", f"not CDI: {no_cdi}; not env: no runtime handler is NVIDIA's"

    def _not_specified(self, uuid: CardUUID) -> str:
        if uuid in self._lost:
            return self._lost[uuid]
        folders = ", ".join(map(str, self._folders))
        return f"no CDI specification in {folders} has {CDI_KIND}={uuid}"


@dataclass(frozen=True, slots=True)
class CardSetup:
    """Gives cards to containers, of classic pods and of ResourceClaims alike."""

    injection: InjectionChooser
    isolation: IsolationChooser
    library: NodeLibrary

    def why_refused(self, cards: Sequence[FoundCard]) -> str:
        """Say why no container could use one of these cards; empty if it can."""
        unusable = why_unusable(cards, self.injection.chosen)
        return unusable or self.isolation.why_refused(cards)

    def answer(
        self,
        resource: str,
        count: int,
        cards: Sequence[FoundCard],
        limit: HardLimit | None,
        folder: Path,
        injection: Injection | None = None,
    ) -> pb.ContainerAllocateResponse:
        """Return what a container gets for so many devices of these cards.

        ``folder`` is the container's; ``injection`` is for who knows a better way.
        """
        way, missing = (
            injection or self.injection.chosen,
            self.injection.missing_nodes(),
        )
        answer = container_setup(resource, count, cards, way, str(folder), missing)
        preload = str(self.library.folder)
        answer.MergeFrom(hard_limit_setup(limit, preload, str(folder)))
        return answer

    def limits_text(
        self, limit: HardLimit | None, cards: Collection[CardUUID]
    ) -> tuple[str, str]:
        """Return what the library reads in a container, and why it has no limit.

        The first is empty for a container without the library, the second if all is
        well. The library is put on the node if it is not there.
        """
        if limit is None or limit.tier != "preload":
            return "", ""
        if wrong := self.library.install() or why_no_single_card(cards):
            return "", f"isolation tier preload: {wrong}"
        [card] = cards
        return limits_text(card, limit, self.isolation.context_mib), ""


def container_setup(
    resource: str,
    count: int,
    cards: Sequence[FoundCard],
    injection: Injection,
    folder: str,
    missing: Collection[str] = (),
) -> pb.ContainerAllocateResponse:
    """Return what a container gets for so many devices of these cards.

    ``folder`` is on the host and is filled before the container starts; it is mounted
    read-only. ``missing`` are those of ``CUDA_NODES`` that the host does not have: no
    container starts with a device node that does not exist.
    """
    nvidia = [card for card in cards if card.known_to_driver]
    others = [card for card in cards if not card.known_to_driver]
    variables = {"VCUDA_CARDS": ",".join(card.uuid for card in cards)}
    variables |= _variables_of(others)
    variables |= limit_env(resource, count)
    variables[names.VISIBLE] = names.VOID
    if injection == "env":
        uuids = ",".join(card.uuid for card in nvidia)
        variables[names.VISIBLE] = uuids or names.VOID
    nodes = _nodes_of(nvidia, missing) if injection == "nodes" else []
    nodes += dict.fromkeys(node for card in others for node in card.device_nodes)
    answer = pb.ContainerAllocateResponse(envs=variables)
    answer.mounts.add(
        container_path=names.SHARE_FOLDER, host_path=folder, read_only=True
    )
    for node in nodes:
        answer.devices.add(container_path=node, host_path=node, permissions="rw")
    for card in nvidia if injection == "cdi" else ():
        answer.cdi_devices.add(name=f"{CDI_KIND}={card.uuid}")
    return answer


def limit_env(resource: str, count: int) -> Mapping[str, str]:
    """Return the variables that tell a program its limits.

    They enforce nothing: a pod may set variables of the same name itself.
    """
    if resource == names.MEMORY:
        return {MEMORY_LIMIT: str(count * UNIT_MIB)}
    return {CORES: str(count)}


def hard_limit_setup(
    limit: HardLimit | None, preload: str, folder: str
) -> pb.ContainerAllocateResponse:
    """Return what holds a container to its hard limit; nothing for None.

    Only one of a container's answers may have it. ``preload`` is the folder of the node
    with the library and the file that names it, and ``folder`` is the container's.
    """
    answer = pb.ContainerAllocateResponse()
    if limit is None:
        return answer
    if limit.tier == "driver":
        # Not as variables: those of the pod would override them.
        answer.cdi_devices.add(name=f"{LIMIT_KIND}={basename(folder)}")
        return answer
    for inside in (names.PRELOAD_FILE, LIBRARY):
        host = f"{preload}/{basename(inside)}"
        answer.mounts.add(container_path=inside, host_path=host, read_only=True)
    answer.mounts.add(container_path=REGION_INSIDE, host_path=f"{folder}/{REGION}")
    return answer


def why_unusable(cards: Sequence[FoundCard], injection: Injection) -> str:
    """Say why a container could not use one of its cards; empty if it can use all."""
    for card in cards:
        real = card.known_to_driver and not card.simulated
        if injection == "nodes" and real and card.minor is None:
            return (
                f"the driver does not report the minor number of card {card.uuid}, so "
                "its device node is not known; set GPUSHARE_INJECT to cdi or env"
            )
        if injection == "nodes" and card.instance and not card.device_nodes:
            return (
                f"/proc/driver/nvidia/capabilities does not have instance {card.uuid}, "
                "so its device nodes are not known; set GPUSHARE_INJECT to cdi or env"
            )
    return ""


def _nodes_of(nvidia: Sequence[FoundCard], missing: Collection[str]) -> list[str]:
    of_cards = [f"/dev/nvidia{card.minor}" for card in nvidia if card.minor is not None]
    # Beside their cards' node, instances have nodes of their own.
    of_cards += [node for card in nvidia for node in card.device_nodes]
    shared = (CONTROL_NODE, *(node for node in CUDA_NODES if node not in missing))
    return [*dict.fromkeys(of_cards), *shared] if of_cards else []


def _variables_of(cards: Sequence[FoundCard]) -> dict[str, str]:
    """Join the values of several cards in one variable with commas."""
    values: dict[str, dict[str, None]] = {}
    for card in cards:
        for name, value in card.variables.items():
            values.setdefault(name, {})[value] = None
    return {name: ",".join(parts) for name, parts in values.items()}


def _names_runtime(status: Json) -> bool:
    """Return whether the node's status names its runtime.

    kubelet writes ``Unknown`` while the runtime does not answer.
    """
    node = status.get("nodeInfo") or {}
    return bool(node) and not str(node.get("containerRuntimeVersion")).endswith(
        "://Unknown"
    )


def _why_no_cdi(status: Json) -> str:
    """Say why CDI names would not reach the container; empty if they would."""
    node = status.get("nodeInfo") or {}
    kubelet = str(node.get("kubeletVersion", ""))
    if _version(kubelet) < _CDI_KUBELET:
        return f"kubelet is {kubelet or 'of unknown version'}, CDI needs 1.31"
    return _why_not_read(node)


def _why_not_read(node: Json) -> str:
    """Say why the runtime that ``nodeInfo`` names may read no CDI specification."""
    name, _, version = str(node.get("containerRuntimeVersion", "")).partition("://")
    if name == "cri-o":
        return ""
    if name == "containerd" and _version(version) >= _CDI_CONTAINERD:
        return ""
    return (
        f"it is not known whether the runtime {name or 'unknown'} {version} reads CDI "
        "specifications; if it does, set GPUSHARE_INJECT=cdi"
    )


def _version(text: str) -> tuple[int, int]:
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
