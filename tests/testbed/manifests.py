"""What we ship, as it is shipped: tests run with those rights and that stanza."""

from pathlib import Path

import yaml

from tests.testbed.rest import Json

FOLDER = Path(__file__).parents[2] / "manifests"


def documents(name: str) -> list[Json]:
    """Read all documents of a manifest, given by its path in ``manifests``."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def rights(account: str) -> list[Json]:
    """Give the rules of an account's ClusterRole: ``gpushare-extender``, …"""
    name = account.removeprefix("gpushare-")
    folder = name if name in ("exporter", "webhook") else "base"
    for body in documents(f"{folder}/{name}-rbac.yaml"):
        if body["kind"] == "ClusterRole":
            rules: list[Json] = body["rules"]
            return rules
    raise LookupError(account)


def guard() -> list[Json]:
    """Give the policies of the guard of annotations, each before its binding."""
    return documents("base/annotation-guard.yaml")


def stanza() -> Json:
    """Give the extender's entry in a KubeSchedulerConfiguration."""
    (found,) = documents("scheduler-extender.yaml")[0]["extenders"]
    entry: Json = found
    return entry
