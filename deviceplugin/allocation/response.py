"""What a container gets: variables, mounts, device nodes or CDI names. Pure.

kubelet merges the answers for cores and for memory, and takes either of two values of
one key (contracts 2.3). So both answers have the same value for each key that both
have.

A container is told its share of memory and cores in environment variables. Nothing
enforces them, except for a hard limit of memory (``isolation``).
"""

from collections.abc import Collection, Mapping, Sequence
from posixpath import basename
from typing import Literal

from gpushare.cards.source import FoundCard
from gpushare.domain.model import UNIT_MIB
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.limit_files import REGION
from gpushare.kubelet.pods import HardLimit

MEMORY_LIMIT = "VCUDA_MEMORY_LIMIT_MIB"
"""Variable: MiB of card memory that the container asked for."""
CORES = "VCUDA_CORES"
"""Variable: hundredths of a card's compute that the container asked for."""
REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
"""Variable: MiB that the driver reserves for the container; read by NVIDIA's hook."""
LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""Variable: MiB that the driver lets the container have; read by NVIDIA's hook."""


def limit_env(resource: str, count: int) -> Mapping[str, str]:
    """Return the variables that tell a program its limits.

    They enforce nothing: a pod may set variables of the same name itself.
    """
    if resource == names.MEMORY:
        return {MEMORY_LIMIT: str(count * UNIT_MIB)}
    return {CORES: str(count)}


def hard_limit_env(limit_mib: int | None) -> Mapping[str, str]:
    """Return the variables by which NVIDIA's hook sets a hard limit; none for None.

    The limit alone would also reserve that memory, so nothing is requested.
    """
    if limit_mib is None:
        return {}
    return {REQUEST: "0", LIMIT: str(limit_mib)}


LIBRARY = f"{names.LIBRARY_FOLDER}/libvcuda.so.1"
"""Tier ``preload``: the library, in the device plugin's image and in containers."""
LIMIT_KIND = f"{names.DRA_DRIVER}/limit"
"""Tier ``driver``: the kind of CDI devices that set a container's hard limit."""
REGION_INSIDE = f"{names.REGION_FOLDER}/region"
"""The file in which the library counts what a container uses."""


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


Injection = Literal["cdi", "env", "nodes"]
INJECTIONS: tuple[Injection, ...] = ("cdi", "env", "nodes")

CDI_KIND = "nvidia.com/gpu"
"""The kind of NVIDIA's cards in a CDI specification; device names are UUIDs."""
CONTROL_NODE = "/dev/nvidiactl"
"""The device node that each container with an NVIDIA card needs beside the card's."""
CUDA_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""Those that only CUDA needs; the driver makes them when CUDA is first used."""


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
