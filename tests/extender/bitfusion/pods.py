"""Pods written for Bitfusion, short, and what is known where they arrive."""

from typing import Any

from extender.bitfusion.client import SCRIPT
from extender.bitfusion.translate import (
    BitfusionRules,
    CardTotal,
    Translation,
    total_of,
    translate,
)
from extender.pool import Pool
from gpushare.kube import names
from gpushare.kube.cluster import Json

ALL = {
    "auto-management/bitfusion": "all",
    "bitfusion-client/os": "ubuntu18",
    "bitfusion-client/version": "450",
}
HALF: Json = {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": 50}}


def rules(
    total_mb: str = "16000", card_mib: str | None = None, **settings: Any
) -> BitfusionRules:
    """An operator's rules; cards of 16000 MB where nothing is said, as in seed 004."""
    total = total_of(card_mib, total_mb)
    assert isinstance(total, CardTotal), total
    return BitfusionRules(total.total_bytes, total.auto, **settings)


def pod(short: Json) -> Json:
    """A whole pod of ``annotations``, ``init``, ``containers`` and fields of a spec."""
    spec = {key: value for key, value in short.items() if key != "annotations"}
    if "init" in spec:
        init = spec.pop("init")
        spec["initContainers"] = [{"name": "init", **one} for one in init]
    spec["containers"] = [{"name": "main", **one} for one in spec["containers"]]
    metadata: Json = {"name": "pod"}
    if "annotations" in short:
        metadata["annotations"] = {
            key: SCRIPT if key == names.BITFUSION_CLIENT else value
            for key, value in short["annotations"].items()
        }
    return {"metadata": metadata, "spec": spec}


def translated(short: Json, pool: Pool | None = None, **settings: Any) -> Translation:
    """Translate a pod of a namespace without a label."""
    return translate(
        pod(short),
        namespace="apps",
        mode="",
        rules=rules(**settings),
        pool=pool or Pool(),
    )
