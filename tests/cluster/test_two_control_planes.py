"""Two control planes: install and uninstall on one of them set up and restore both.

With DRA, for which the API servers have to trust the authorities of both.
"""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusharectl.installer.kube_scheduler.ports import RESERVED
from tests.cluster.fresh import Fresh, Tree, fresh
from tests.cluster.manifests import TWO_P4, container, pod
from tests.cluster.site import EXTENDER, SYSTEM
from tests.cluster.test_dra import by_claim
from tests.cluster.test_install import without_claims
from tests.nvml.build import the_stub
from tests.testbed.kubeadm import Cluster
from tests.testbed.kubeadm.programs import Programs

HOSTS = ("cp", "cp-2")
STAMP = "baidu.com/vcuda-scheduler-config"


@pytest.fixture(scope="module")
def host(
    cluster_programs: Programs,
    app_archive: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fresh]:
    folder = tmp_path_factory.mktemp("two")
    made = folder / "cluster"
    with Cluster(cluster_programs, made, archives=[app_archive]) as cluster:
        cluster.join("cp-2", control_plane=True)
        yield fresh(cluster, the_stub(), folder).begin(TWO_P4)


def trees(host: Fresh) -> list[Tree]:
    return [host.tree(name) for name in HOSTS]


def stamped(host: Fresh) -> list[str]:
    """Give the nodes whose kube-scheduler was started with gpushare's configuration."""
    pods = host.get("pods", "-n", SYSTEM, "-l", "component=kube-scheduler")["items"]
    return sorted(
        each["spec"]["nodeName"]
        for each in pods
        if STAMP in each["metadata"]["annotations"]
    )


def reserved(host: Fresh) -> list[str]:
    """Give the ports of each host that no outgoing connection may be given."""
    return [host.cluster.nodes[name].must("cat", RESERVED).strip() for name in HOSTS]


def trusted(host: Fresh) -> bytes:
    """Give the authorities that the API servers trust in the arbiters."""
    name = "claims.vcuda.baidu.com"
    (hook,) = host.get("validatingwebhookconfiguration", name)["webhooks"]
    return base64.b64decode(hook["clientConfig"]["caBundle"])


def test_both_are_set_up_and_restored(host: Fresh) -> None:
    """The other one by a Job; without the extender it is found by its pod."""
    if all(reserved(host)):
        for name in HOSTS:
            # The test bed has reserved the extender's three as well.
            others = "39990-39995,39997"
            host.cluster.nodes[name].must("sh", "-c", f"echo {others} > {RESERVED}")
    before, ports = trees(host), reserved(host)
    told = host.must("install", "--nodes", "cp", "--yes", "--dra")
    assert "kube-scheduler that holds the lease calls the extender" in told
    assert stamped(host) == list(HOSTS)
    host.create(pod("first", container("main", 4, 1)))
    by_claim(host, "by-claim", 4)
    host.wait_running("first", "by-claim")
    installed = trees(host)
    # Each API server asks the extender of its own host, with an authority of its own.
    own = [each["vcuda/tls/ca.crt"][1] for each in installed]
    assert len(set(own)) == len(HOSTS)
    assert trusted(host) == b"".join(own)
    assert all(each.endswith("-39999") for each in reserved(host) if each)
    host.must("install", "--nodes", "cp", "--yes")
    assert trees(host) == installed

    host.clear()
    without_claims(host)
    host.kubectl("delete", "daemonset", EXTENDER, "-n", SYSTEM)
    told = host.must("uninstall", "--yes")
    assert "as it was before the install." in told
    assert stamped(host) == []
    assert trees(host) == before
    assert reserved(host) == ports
