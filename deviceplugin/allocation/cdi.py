"""CDI specifications: what the node's say of NVIDIA's cards, and how to write one."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from deviceplugin.allocation.response import CDI_KIND
from gpushare.domain.model import CardUUID
from gpushare.host_root import exists_on_host
from gpushare.kube.cluster import Json
from gpushare.kube.proto import deviceplugin_pb2 as pb

logger = logging.getLogger(__name__)

_MOUNT_OPTIONS = ("nosuid", "nodev", "rbind")
_SUFFIXES = (".json", ".yaml")
"""As CDI's own library has it (``spec-dirs.go``): it reads no other file."""

_NOT_UNDERSTOOD = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    yaml.YAMLError,
)

_SPECIFICATION = "0.5.0"
"""The first version of CDI with all that ``_edits`` uses."""


def specification(
    kind: str, devices: Mapping[str, pb.ContainerAllocateResponse]
) -> Json:
    """Return a CDI specification that brings into a container what kubelet would.

    ``devices`` is by the device's name. CDI names in an answer are left out: they name
    devices of other specifications.
    """
    return {
        "cdiVersion": _SPECIFICATION,
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": _edits(answer)}
            for name, answer in devices.items()
        ],
    }


def _edits(answer: pb.ContainerAllocateResponse) -> Json:
    edits = {
        "env": [f"{name}={value}" for name, value in sorted(answer.envs.items())],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", *_MOUNT_OPTIONS],
            }
            for mount in answer.mounts
        ],
        "deviceNodes": [
            {
                "path": node.container_path,
                "hostPath": node.host_path,
                "permissions": node.permissions,
            }
            for node in answer.devices
        ],
    }
    return {key: value for key, value in edits.items() if value}


def specified(folders: Iterable[Path]) -> Mapping[CardUUID, frozenset[str]]:
    """Return NVIDIA's device names in the specifications of these folders.

    Each has the arguments of its hooks, such as a hook's name. Of a device in several
    folders those that all of them have: which one a runtime takes depends on it. A
    device that is twice in one folder is left out, because a runtime takes neither
    (``refresh`` in CDI's ``cache.go``).
    """
    hooks_of: dict[CardUUID, frozenset[str]] = {}
    twice: set[CardUUID] = set()
    for folder in folders:
        here: dict[CardUUID, Path] = {}
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            for name, hooks in _devices(path).items():
                if name in here:
                    twice.add(name)
                    facts = {"card": name, "files": f"{here[name]} and {path}"}
                    logger.warning(
                        "runtimes ignore it: two files of a folder have it", extra=facts
                    )
                here[name] = path
                hooks_of[name] = hooks_of.get(name, hooks) & hooks
    return {name: hooks for name, hooks in hooks_of.items() if name not in twice}


def lost_files(folders: Iterable[Path], root: Path) -> Mapping[CardUUID, str]:
    """Return the devices that name host paths that do not exist, each with the reason.

    Runtimes start no container with such a device: after an update of the driver,
    until the specification is written anew. Of a device in several folders the last
    one's counts, as for runtimes (``refresh`` in CDI's ``cache.go``). ``root`` is where
    the host's files are.
    """
    lost: dict[CardUUID, str] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*"))):
        # ``specified`` warns of a file that is not understood.
        with suppress(*_NOT_UNDERSTOOD):
            body = _body(path)
            common = next(_missing(body, root), "")
            for device in body.get("devices", ()):
                name = CardUUID(str(device["name"]))
                lost.pop(name, None)
                if missing := common or next(_missing(device, root), ""):
                    lost[name] = f"{path} names {missing}, which does not exist"
    return lost


def sees_host(root: Path) -> bool:
    """Return whether the host's files are below ``root``, so that one can look.

    Below ``/`` they may be those of the plugin's own image.
    """
    return root != Path("/") and (root / "usr").is_dir()


def _missing(part: Json, root: Path) -> Iterator[str]:
    """Yield the host paths that a runtime needs of a specification or device in vain.

    It makes a device node itself if it knows the number. A mount of a file system has
    no path, and the path of a hook ``startContainer`` is one of the container.
    """
    edits = part.get("containerEdits") or {}
    nodes = (
        node.get("hostPath") or node["path"]
        for node in edits.get("deviceNodes") or ()
        if not (node.get("type") and node.get("major"))
    )
    mounts = (
        mount["hostPath"]
        for mount in edits.get("mounts") or ()
        if mount.get("type") in (None, "", "none", "bind")
    )
    hooks = (
        hook["path"]
        for hook in edits.get("hooks") or ()
        if hook.get("hookName") != "startContainer"
    )
    for path in (*nodes, *mounts, *hooks):
        if not exists_on_host(str(path), root):
            yield str(path)


def _devices(path: Path) -> Mapping[CardUUID, frozenset[str]]:
    try:
        devices = _body(path).get("devices", ())
        return {CardUUID(str(device["name"])): _hooks(device) for device in devices}
    except _NOT_UNDERSTOOD as error:
        facts = {"file": str(path), "because": " ".join(str(error).split())}
        logger.warning("CDI specification not understood", extra=facts)
        return {}


def _body(path: Path) -> Json:
    """Return a specification of NVIDIA's cards, {} of others. ``_NOT_UNDERSTOOD``."""
    is_special = path.exists() and not path.is_file()
    if path.suffix not in _SUFFIXES or is_special:
        # To read a pipe would never end.
        return {}
    text = path.read_text()
    body = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return {**body, "devices": body["devices"]} if body["kind"] == CDI_KIND else {}


def _hooks(device: Json) -> frozenset[str]:
    hooks = (device.get("containerEdits") or {}).get("hooks") or ()
    return frozenset(
        str(argument) for hook in hooks for argument in hook.get("args") or ()
    )
