"""What we ship for kube-scheduler, and as which version of ourselves."""

from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files

import yaml

from gpushare.kube.cluster import Json
from gpusharectl.scheduler.schedulerconfig import KIND, packing
from gpusharectl.scheduler.schedulerfiles import Asked

SHIPPED = "scheduler-extender.yaml"


def shipped_extender() -> Json:
    """Give our entry of ``extenders``, plain HTTP on loopback."""
    text = files("manifests").joinpath(SHIPPED).read_text()
    (extender,) = yaml.safe_load(text)["extenders"]
    found: Json = extender
    return found


def packing_configuration(text: str) -> str:
    """Give a KubeSchedulerConfiguration of ours for ``frag``; any other text as it is.

    For the one that is shipped with a scheduler of our own, which scores all nodes.
    """
    if KIND not in text:
        return text
    config = yaml.safe_load(text)
    config["extenders"] = [packing(each) for each in config["extenders"]]
    return yaml.safe_dump(config, sort_keys=False)


def asked_of(kubernetes: str, *, tls: bool = False, packs: bool = False) -> Asked:
    """Say what is wanted of a host now, in a cluster of this version (``v1.36.3``)."""
    now = datetime.now(UTC)
    return Asked(kubernetes, version("gpushare"), shipped_extender(), now, tls, packs)
