"""What we ship for kube-scheduler, and as which version of ourselves."""

from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files

import yaml

from gpushare.kube.cluster import Json
from gpusharectl.scheduler.schedulerfiles import Asked

SHIPPED = "scheduler-extender.yaml"


def shipped_extender() -> Json:
    """Give our entry of ``extenders``, plain HTTP on loopback."""
    text = files("manifests").joinpath(SHIPPED).read_text()
    (extender,) = yaml.safe_load(text)["extenders"]
    found: Json = extender
    return found


def asked_of(kubernetes: str, *, tls: bool = False) -> Asked:
    """Say what is wanted of a host now, in a cluster of this version (``v1.36.3``)."""
    now = datetime.now(UTC)
    return Asked(kubernetes, version("gpushare"), shipped_extender(), now, tls)
