"""CDI specifications: what the node's say of NVIDIA's cards, and how to write one."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from gpushare.domain.model import CardUUID
from gpushare.files import replace_file
from gpushare.host_root import exists_on_host
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.pods import card_key

logger = logging.getLogger(__name__)

CDI_KIND = "nvidia.com/gpu"
"""The kind of NVIDIA's cards in a CDI specification; device names are UUIDs."""
LIMIT_KIND = f"{names.DRA_DRIVER}/limit"
"""Tier ``driver``: the kind of CDI devices that set a container's hard limit."""
REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
"""Variable: MiB that the driver reserves for the container; read by NVIDIA's hook."""
LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""Variable: MiB that the driver lets the container have; read by NVIDIA's hook."""
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


def put_specification(path: Path, body: Json) -> None:
    """Write a CDI specification unless it is there; raises ``OSError``.

    Its folder is in memory on most systems, so it is empty after a reboot.
    """
    text = json.dumps(body)
    # As bytes: what a loss of power has left may be no text.
    if path.is_file() and path.read_bytes() == text.encode():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    replace_file(path, text)


HOOK = "apply-cuda-memory-limits"
"""The hook of NVIDIA's container toolkit, from 1.20.1 on, that sets the limits."""
BUNDLE = ".bundle"
"""A folder of the container's: what NVIDIA's hook reads for the runtime's bundle."""
BUNDLE_CONFIG = "config.json"
_WITH_OUR_CONFIG = (
    """sed 's|"bundle": *"[^"]*"|"bundle":"'"$0"'"|g' | exec "$@" """.strip()
)
"""Runs NVIDIA's hook with the container's state, in which the bundle is ``$0``."""
_OURS = f"{LIMIT_KIND.replace('/', '-')}_"
"""How the names of our own files begin."""
_HOOK_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"


class LimitSpecifications:
    """The CDI specifications by which NVIDIA's driver gets the limits of containers.

    Each sets the two variables of NVIDIA's hook: runtimes apply it after those of the
    pod. containerd leaves one of the image before them, and the hook takes the first.
    So each also runs the hook once more, after the card's own one, with a bundle that
    has these two variables alone. ``folder`` is where they are written, and ``folders``
    are where NVIDIA's specifications are.
    """

    def __init__(self, folder: Path, folders: Sequence[Path]) -> None:
        self._folder = folder
        self._folders = folders
        self._hooks: tuple[object, Mapping[str, Json]] = (None, {})
        """NVIDIA's hooks by the card's key, and the files that they were read of."""

    def put(self, name: str, limit_mib: int, key: str, bundle: Path) -> None:
        """Write what a container with this limit needs; raises ``OSError``.

        ``name`` is that of the device; the others are those of ``edits``.
        """
        bundle.mkdir(exist_ok=True, mode=0o755)
        replace_file(bundle / BUNDLE_CONFIG, bundle_text(limit_mib))
        edits = self.edits(limit_mib, key, bundle)
        device = {"name": name, "containerEdits": edits}
        body = {"cdiVersion": _SPECIFICATION, "kind": LIMIT_KIND, "devices": [device]}
        put_specification(self._path(name), body)

    def edits(self, limit_mib: int, key: str, bundle: Path) -> Json:
        """Return what brings a limit into a container.

        ``key`` is its card's in device ids. ``bundle`` is a folder on the host, in
        which ``BUNDLE_CONFIG`` has ``bundle_text``.
        """
        edits: Json = {"env": _env(limit_mib)}
        if hook := self._nvidias_hooks().get(key):
            args = ["sh", "-c", _WITH_OUR_CONFIG, str(bundle)]
            args += [str(hook["path"]), *map(str, hook["args"][1:])]
            env = [_HOOK_PATH, *(hook.get("env") or ())]
            edits["hooks"] = [
                {**hook, "path": "/bin/sh", "args": args, "env": env},
            ]
        return edits

    def remove(self, name: str) -> None:
        """Remove a device's specification, if there is one and it can be removed."""
        # The folder is read-only where the manifest is one of before.
        with suppress(OSError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{_OURS}{name}.json"

    def _nvidias_hooks(self) -> Mapping[str, Json]:
        """Return the hook that sets limits on each card, by its key in device ids.

        Read again only if a file has changed: a specification takes 40 ms, and is
        needed for each container when the plugin starts.
        """
        every = (path for folder in self._folders for path in _files(folder))
        files = [path for path in every if not path.name.startswith(_OURS)]
        stamps = [(path, _stamp(path)) for path in files]
        if self._hooks[0] != stamps:
            hooks: dict[str, Json] = {}
            for path in files:
                # ``specified`` warns of a file that is not understood.
                with suppress(*_NOT_UNDERSTOOD):
                    hooks |= _limit_hooks(_body(path))
            self._hooks = (stamps, hooks)
        return self._hooks[1]


def _stamp(path: Path) -> tuple[int, ...]:
    with suppress(OSError):
        is_now = path.stat()
        return is_now.st_dev, is_now.st_ino, is_now.st_mtime_ns, is_now.st_size
    return ()


def _limit_hooks(body: Json) -> dict[str, Json]:
    return {
        card_key(CardUUID(str(device["name"]))): hook
        for device in body.get("devices", ())
        for hook in (device.get("containerEdits") or {}).get("hooks") or ()
        if HOOK in (hook.get("args") or ())
    }


def bundle_text(limit_mib: int) -> str:
    """Return the part of an OCI configuration that NVIDIA's hook reads."""
    body = {"ociVersion": "1.0.2", "process": {"env": _env(limit_mib)}}
    return json.dumps(body)


def _env(limit_mib: int) -> list[str]:
    return [f"{name}={value}" for name, value in hard_limit_env(limit_mib).items()]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*")) if folder.is_dir() else []


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
        for path in _files(folder):
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
    for path in (path for folder in folders for path in _files(folder)):
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


def hard_limit_env(limit_mib: int | None) -> Mapping[str, str]:
    """Return the variables by which NVIDIA's hook sets a hard limit; none for None.

    The limit alone would also reserve that memory, so nothing is requested.
    """
    if limit_mib is None:
        return {}
    return {REQUEST: "0", LIMIT: str(limit_mib)}
