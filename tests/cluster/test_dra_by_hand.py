"""DRA switched on and off by the commands of docs/dra.md, on an install with TLS."""

from pathlib import Path

import pytest

from tests.cluster.fresh import Before, Fresh, said
from tests.cluster.manifests import TWO_P4, container, pod
from tests.cluster.site import EXTENDER, SYSTEM
from tests.cluster.test_dra import GROUP, TEMPLATES, by_claim, devices, template
from tests.controlplane.test_manifests import commands
from tests.testbed.manifests import FOLDER
from tests.testbed.waiting import wait_until

CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
AUTHORITY = "/etc/kubernetes/vcuda/tls/ca.crt"


@pytest.fixture(scope="module")
def host(bare: Fresh) -> Fresh:
    return bare.begin(TWO_P4)


def rolled_out(host: Fresh, name: str) -> None:
    host.kubectl("-n", SYSTEM, "rollout", "status", f"daemonset/{name}")


def test_on_and_off(host: Fresh, before: Before, tmp_path: Path) -> None:
    """A classic pod and a claim share a card; what does not fit is denied.

    The API server reaches the extender by the certificate of its host. Afterwards
    nothing is left.
    """
    host.must("install", "--nodes", "cp", "--yes", "--tls")
    authority = host.cluster.nodes["cp"].path(AUTHORITY).read_bytes()
    (tmp_path / "authorities.pem").write_bytes(authority)
    text = (FOLDER.parent / "docs/dra.md").read_text()
    for one in commands(text, "Switch it on", tmp_path):
        host.kubectl(*one)
        rolled_out(host, EXTENDER)
    rolled_out(host, "gpushare-device-plugin")
    wait_until(lambda: len(devices(host)) == len(TWO_P4), "the slice", 60)

    host.create(pod("classic", container("main", 4, 1)))
    host.wait_running("classic")
    by_claim(host, "by-claim", 20)
    host.wait_running("by-claim")
    assert host.visible("classic") == host.visible("by-claim")

    (card,) = host.visible("classic")
    status, why = allocate(host, "too-much", card, 20)
    assert status >= 400
    assert f"card {card} of node cp has 5 units left, not 20" in why
    for command in ("install", "uninstall"):
        refused = host.ctl(command, "--yes")
        assert refused.returncode == 3
        assert "switch DRA off" in said(refused)

    host.kubectl("delete", "pod", "classic", "by-claim")
    rest = host.cluster.rest
    rest.must("DELETE", CLAIMS)
    rest.must("DELETE", TEMPLATES)
    for one in commands(text, "Switch it off", tmp_path):
        host.kubectl(*one)
    rolled_out(host, "gpushare-device-plugin")
    host.must("uninstall", "--yes")
    files, objects = before
    assert host.tree() == files
    wait_until(
        lambda: host.everything().keys() - objects.keys(),
        "nothing left over",
        30,
        accept=lambda more: not more,
    )


def allocate(host: Fresh, name: str, card: str, units: int) -> tuple[int, str]:
    """Write an allocation as a scheduler does that knows of nobody else."""
    rest = host.cluster.rest
    body = template(units, 1)
    claim = rest.must(
        "POST",
        CLAIMS,
        {**body, "kind": "ResourceClaim", "metadata": {"name": name}}
        | {"spec": body["spec"]["spec"]},
    )
    result = {
        "request": "card",
        "driver": "vcuda.baidu.com",
        "pool": "cp",
        "device": card.lower(),
        "shareID": "8a7ea7a4-4f0f-4c56-a1ef-0c2c8c9a8d11",
        "consumedCapacity": {"memory": f"{units * 256}Mi", "cores": "1"},
    }
    claim["status"] = {"allocation": {"devices": {"results": [result]}}}
    status, said_ = rest.request("PUT", f"{CLAIMS}/{name}/status", claim)
    return status, str(said_.get("message", ""))
