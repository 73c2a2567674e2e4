"""While nobody answers, only pods that ask us wait; and a renewal leaves no gap."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event

import pytest

from gpusharectl.installer.pki import plan_certificates
from tests.controlplane.bitfusionpods import ALL, share
from tests.controlplane.gate import Gate, asking, container, limits_of
from tests.testbed.objects import CORE, MEMORY, pod
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

SHARE = asking(container({MEMORY: 4, CORE: 1}))
THEIRS = asking(container(share()), annotations=ALL)


@pytest.fixture
def down(gate: Gate) -> Iterator[Gate]:
    """A pod with a share is there, and then the webhook ends."""
    metadata = {**SHARE["metadata"], "name": "held"}
    gate.admitted({**SHARE, "metadata": metadata}, dry_run=False)
    gate.webhook.stop()
    yield gate
    gate.webhook.start()
    gate.wait_standing()


def test_only_who_asks_us_waits(down: Gate) -> None:
    """And is told for whom.

    Not other pods, those of the system, nor what becomes of pods that are there.
    """
    for a_pod, entry in ((SHARE, "pods"), (THEIRS, "bitfusion")):
        status, answer = down.post(a_pod)
        assert status == 500
        assert f'failed calling webhook "{entry}.vcuda.baidu.com"' in answer["message"]
    down.admitted(pod("plain"))
    down.admitted(asking(container({"nvidia.com/gpu": 1})))
    unsaid = down.admitted(asking(container(share())))
    assert "bitfusion.io/gpu-amount" in limits_of(unsaid)
    for namespace in ("kube-system", "kube-public", "kube-node-lease"):
        down.at(namespace).admitted(SHARE)
    path = f"/api/v1/namespaces/{down.namespace}/pods/held"
    down.rest.must("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
    down.rest.must("PATCH", f"{path}/status", {"status": {"message": "said"}})
    target = {"metadata": {"name": "held"}, "target": {"kind": "Node", "name": "n"}}
    down.rest.must("POST", f"{path}/binding", target)
    down.rest.must("DELETE", path)


def test_a_new_authority_without_a_gap(gate: Gate) -> None:
    """Both are trusted first, then the certificate changes, then the old one goes.

    Meanwhile pods are made all the time, and each is reviewed.
    """
    tls_files, stop, now = gate.webhook.tls_files, Event(), datetime.now(UTC)
    old = tls_files.read()

    def busy() -> int:
        count = 0
        while not stop.is_set():
            made = gate.admitted(asking(container({MEMORY: 4})))
            assert limits_of(made)[CORE] == "1"
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(busy) for _ in range(4)]
        try:
            new = {
                name: file.content for name, file in plan_certificates({}, now).items()
            }
            gate.register(old["ca.crt"] + new["ca.crt"])
            settled(gate)
            for name in ("server.key", "server.crt"):
                tls_files.replace(name, new[name])
            settled(gate)
            gate.register(new["ca.crt"])
            settled(gate)
        finally:
            stop.set()
        assert all(each.result() > 5 for each in made)


def settled(gate: Gate) -> None:
    """Wait until the API server has asked often since."""
    before = gate.reviews()["admit"]
    wait_until(lambda: gate.reviews()["admit"] > before + 50, "more reviews")
