"""Which keys of a ResourceQuota count a pod's share, and the warning for the others."""

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpusharectl.commands import main
from tests.controlplane.bitfusionpods import quota
from tests.controlplane.gate import policies_in_force
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.manifests import documents
from tests.testbed.objects import CORE, MEMORY, pod
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

COUNT = (f"requests.{MEMORY}", f"requests.{CORE}")
IDLE = (
    f"limits.{MEMORY}",
    f"limits.{CORE}",
    MEMORY,
    CORE,
    f"requests.{MEMORY}-mib",
    f"requests.{CORE}s",
    f"requests.{MEMORY.replace('-', '_')}",
    f"request.{MEMORY}",
    "limits.bitfusion.io/gpu",
    "bitfusion.io/gpu-memory",
    "requests.bitfusion.io/gpu-memory",
)
OTHERS = (
    "limits.memory",
    "count/pods",
    "requests.nvidia.com/gpu",
    "requests.tencent.com/vcuda-core",
    "requests.bitfusion.io/gpu",
    "vcuda.deviceclass.resource.k8s.io/devices",
)
READER = "why-reader"
Create = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def warned(plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the policy that warns, and the controller that counts."""
    with (
        policies_in_force(plane.rest, documents("base/quota-warning.yaml")),
        plane.start_controller_manager(["resourcequota-controller"]),
    ):
        yield plane


@pytest.fixture
def create(warned: ControlPlane, space: str) -> Create:
    """Create a quota of 8 with kubectl, which shows warnings, once the policy holds."""
    config = warned.kubeconfig(warned.admin.token, "kubectl")
    own = [f"--kubeconfig={config}", f"--namespace={space}", "create", "-f", "-"]

    def created(key: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [warned.binaries.path("kubectl"), *own, *more],
            input=json.dumps(quota("most", key, 8)),
            capture_output=True,
            text=True,
            check=False,
        )

    wait_until(lambda: created(IDLE[0], "--dry-run=server").stderr, "the policy")
    return created


@pytest.mark.parametrize("key", [*COUNT, *IDLE, *OTHERS])
def test_a_quota_that_counts_no_share_is_warned_of(
    warned: ControlPlane, space: str, create: Create, key: str
) -> None:
    """The policy and ``inspect`` have one rule, and the API server's count agrees."""
    done = create(key)
    assert done.returncode == 0, done.stderr
    advice = f"keys that count nothing: {key}; limit {' and '.join(COUNT)}"
    warns = advice in done.stderr
    assert warns == (key in IDLE)
    assert bool(done.stderr) == warns, done.stderr
    path = f"/api/v1/namespaces/{space}"
    body = warned.rest.must("GET", f"{path}/resourcequotas/most")
    assert bool(facts.uncounted(body)) == warns
    wait_until(
        lambda: warned.rest.must("GET", f"{path}/resourcequotas/most").get("status"),
        "a quota in force",
        accept=lambda status: bool(status) and key in status.get("hard", {}),
    )
    status, answer = warned.rest.post(f"{path}/pods", asks(space))
    if key not in OTHERS:
        assert status == (403 if key in COUNT else 201), answer


def asks(space: str) -> Json:
    """A pod of 40 units, as its user writes it."""
    asked = {MEMORY: "40", CORE: "100"}
    container = {"name": "main", "image": "local.test/pause:1"}
    container |= {"resources": {"requests": asked, "limits": asked}}
    return pod("asks", space, spec={"containers": [container]})


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_why_reads_the_quotas_of_the_pods_namespace(
    plane: ControlPlane, space: str
) -> None:
    """With the user's own rights; without the right to them they are not known."""
    path = f"/api/v1/namespaces/{space}"
    wrong = quota("most", IDLE[0], 8)
    plane.rest.must("POST", f"{path}/resourcequotas", wrong)
    plane.rest.must("POST", f"{path}/pods", asks(space))
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}
    ]
    grant(plane.rest, f"system:serviceaccount:default:{READER}", rules)
    token = service_account_token(plane.rest, "default", READER)
    notes = []
    for user in (plane.admin.token, token):
        config = str(plane.kubeconfig(user, "why"))
        words = ["why", f"{space}/asks", "--output=json", "--kubeconfig", config]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 3, done.output
        notes += json.loads(done.stdout)["warnings"]
    advice = f"keys that count nothing: {IDLE[0]}; limit {' and '.join(COUNT)}"
    known, unknown = notes
    assert known == f"quota {space}/most: {advice}"
    assert unknown.startswith("quotas: they cannot be read: resourcequotas is forbid")
