"""What the node's CDI specifications say of NVIDIA's cards."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from deviceplugin.allocation.response import CDI_KIND
from gpushare.domain.model import CardUUID
from gpushare.kube.cluster import Json

logger = logging.getLogger(__name__)

_SUFFIXES = (".json", ".yaml", ".yml")


def specified(folders: Iterable[Path]) -> Mapping[CardUUID, frozenset[str]]:
    """Return NVIDIA's device names in the specifications of these folders.

    Each has the arguments of its hooks, such as a hook's name. Of a device in several
    specifications those that all of them have: which one a runtime takes depends on it.
    """
    found: dict[CardUUID, frozenset[str]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in _SUFFIXES:
                for name, hooks in _devices(path).items():
                    found[name] = found.get(name, hooks) & hooks
    return found


def _devices(path: Path) -> Mapping[CardUUID, frozenset[str]]:
    try:
        text = path.read_text()
        body = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        if body["kind"] != CDI_KIND:
            return {}
        return {CardUUID(str(one["name"])): _hooks(one) for one in body["devices"]}
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        yaml.YAMLError,
    ) as error:
        facts = {"file": str(path), "because": " ".join(str(error).split())}
        logger.warning("CDI specification not understood", extra=facts)
        return {}


def _hooks(device: Json) -> frozenset[str]:
    hooks = (device.get("containerEdits") or {}).get("hooks") or ()
    return frozenset(
        str(argument) for hook in hooks for argument in hook.get("args") or ()
    )
