"""Pods written for Bitfusion, short, and what is known where they arrive."""

from typing import Any

from gpushare.kube import names
from gpushare.kube.cluster import Json
from webhook.bitfusion.client import SCRIPT
from webhook.bitfusion.resources import MB, BitfusionRules
from webhook.bitfusion.translate import Translation, translate_pod
from webhook.pool import CardPool

ALL = {
    "auto-management/bitfusion": "all",
    "bitfusion-client/os": "ubuntu18",
    "bitfusion-client/version": "450",
}
HALF: Json = {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": 50}}


def rules(
    total_mb: str = "16000", card_mib: str = "", **settings: Any
) -> BitfusionRules:
    """Build an operator's rules; by default cards of 16000 MB, as in seed 004."""
    if card_mib == "auto":
        return BitfusionRules(auto=True, **settings)
    if card_mib:
        return BitfusionRules(int(card_mib) << 20, **settings)
    return BitfusionRules(int(total_mb) * MB if total_mb else None, **settings)


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


def translated(
    short: Json, pool: CardPool | None = None, **settings: Any
) -> Translation:
    """Translate a pod of a namespace without a label."""
    return translate_pod(
        pod(short),
        namespace="apps",
        mode="",
        rules=rules(**settings),
        pool=pool or CardPool(),
    )
