"""BIE's collector as it is shipped: real pods, which baetyl-core would call."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpusharectl.installer.manifests import BIE, load_manifests
from tests.cluster.gpus import Gpus
from tests.cluster.manifests import TWO_P4
from tests.cluster.site import Site
from tests.nvml.driver import cdi_spec, with_library
from tests.testbed.manifests import FOLDER
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

EDGE = "baetyl-edge-system"
CALLED = "baetyl-service-name=baetyl-accelerator-metrics"
LABEL = "baidu.com/vcuda"


@pytest.fixture
def gpus(site: Site) -> Iterator[Gpus]:
    """Two cards whose driver every container with cards finds, and BIE's namespace."""
    found = site.gpus["cp"]
    found.set_cards(TWO_P4)
    markers = found.folder / "markers"
    plain = cdi_spec(found.stub, found.driver.path, TWO_P4, markers)
    found.node.write_cdi(with_library(plain, found.stub))
    site.kubectl("create", "namespace", EDGE)
    site.kubectl("label", "node", "cp", f"{LABEL}=true", "--overwrite")
    yield found
    site.kubectl("label", "node", "cp", f"{LABEL}-")
    site.kubectl("delete", "namespace", EDGE)
    found.node.write_cdi(plain)


@pytest.mark.parametrize("overlay", BIE)
def test_baetyl_is_told_of_the_cards(
    site: Site, gpus: Gpus, app_image: str, overlay: str, tmp_path: Path
) -> None:
    """One pod by the label, whose port 30060 answers for this node.

    Without a driver too; and with it the answer follows the cards' use.
    """
    site.kubectl("apply", "-k", str(FOLDER / overlay))
    pod = wait_until(lambda: ready(site), "the pod to be ready", 120)
    assert pod["spec"]["containers"][0]["image"] == app_image
    assert "hostNetwork" not in pod["spec"]
    none = {"deviceNum": 0, "devices": [], **card(0, 0)}
    assert collected(site, pod) == {"cp": none}
    # Equal to kustomize's: tests/controlplane/test_manifests.py.
    (body,) = load_manifests(overlay, components=["nvidia-runtime"])
    file = tmp_path / "bie.yaml"
    file.write_text(yaml.safe_dump(body))
    site.kubectl("apply", "-f", str(file))
    pod = wait_until(
        lambda: ready(site, "nvidia"), "the pod with the driver to be ready", 120
    )
    idle = node(0, 0)
    wait_until(lambda: collected(site, pod), "both cards", accept=idle.__eq__)
    gpus.driver.change(0, used_mib=761)
    used = node(761, 0)
    wait_until(lambda: collected(site, pod), "their use", accept=used.__eq__)
    gpus.driver.change(0, used_mib=0)
    wait_until(lambda: collected(site, pod), "both again", accept=idle.__eq__)


def ready(site: Site, runtime: str | None = None) -> Json | None:
    """The only pod with the label, once it is ready and made for this runtime."""
    pods = site.get("pods", "-n", EDGE, "-l", CALLED)["items"]
    for found in pods if len(pods) == 1 else []:
        pod: Json = found
        conditions = pod["status"].get("conditions", [])
        states = {one["type"]: one["status"] for one in conditions}
        if pod["spec"].get("runtimeClassName") == runtime:
            return pod if states.get("Ready") == "True" else None
    return None


def collected(site: Site, pod: Json) -> Json:
    """What baetyl-core reads, by way of the API server."""
    name = pod["metadata"]["name"]
    proxy = f"/api/v1/namespaces/{EDGE}/pods/{name}:30060/proxy"
    found: Json = json.loads(site.kubectl("get", "--raw", f"{proxy}/v1/collect"))
    return found


def node(*used: int) -> Json:
    """The answer for cp, by the MiB in use of its cards."""
    total = [card.memory_mib for card in TWO_P4]
    cards = [card(*one) for one in zip(used, total, strict=True)]
    sums = card(sum(used), sum(total))
    return {"cp": {"deviceNum": len(cards), "devices": cards, **sums}}


def card(used: int, total: int) -> Json:
    percent = used / total if total else 0.0
    return {"percent": percent, "totalMemory": total, "usedMemory": used}
