"""Quotas under another name, on a real API server, and inspect's view of them."""

from collections.abc import Iterator

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Invalid
from gpushare.kube.objects import Objects, Ref
from gpusharectl.commands import main
from gpusharectl.migrate.quota import QuotaChange, QuotaRename, plan_quota_change
from tests.gpusharectl.cluster_states import BITFUSION, CORE, MEMORY, quota
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import new_namespace

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

ACCOUNT = "quota-reader"


@pytest.fixture(scope="module")
def kubeconfig(plane: ControlPlane) -> str:
    return str(plane.kubeconfig(plane.admin.token, "quotas"))


@pytest.fixture(scope="module")
def objects(kubeconfig: str) -> Iterator[Objects]:
    made = ApiObjects.connect(kubeconfig)
    yield made
    made.close()


@pytest.fixture
def own(plane: ControlPlane, objects: Objects) -> Iterator[str]:
    """A namespace with one quota, made for Bitfusion; half of it is used."""
    namespace = new_namespace(plane.rest)
    hard, used = {BITFUSION: "100", "pods": "9"}, {BITFUSION: "50", "pods": "1"}
    body = quota(namespace, hard=hard, used=used)
    objects.create({key: body[key] for key in body if key != "status"})
    objects.merge(Ref.of(body), {"status": body["status"]}, subresource="status")
    yield namespace
    objects.delete(Ref.of(body))


def ran(kubeconfig: str, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--kubeconfig", kubeconfig])


def there(objects: Objects, namespace: str) -> Json:
    found = objects.get(Ref("v1", "ResourceQuota", "gpu", namespace))
    assert found is not None
    return found


def test_a_dry_run_shows_what_the_move_then_makes(
    kubeconfig: str, objects: Objects, own: str
) -> None:
    """By the API server's own judgement; the second time nothing is left."""
    before = there(objects, own)
    words = ["migrate-quota", "--from", BITFUSION, "-n", own]
    shown = ran(kubeconfig, *words, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"-    {BITFUSION}: '100'\n" in shown.output
    assert f"+    {CORE}: '100'\n" in shown.output
    assert "1 quota would be moved" in shown.output
    assert there(objects, own) == before
    done = ran(kubeconfig, *words)
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{own}/gpu: 100 of {CORE}",
        f"Only cores are limited in {own}: add {MEMORY} there.",
        f"1 quota moved to {CORE}.",
    ]
    after = there(objects, own)
    assert after["spec"]["hard"] == {CORE: "100", "pods": "9"}
    assert "No quota is left" in ran(kubeconfig, *words).output
    assert there(objects, own) == after


def test_a_bound_that_changed_meanwhile_is_not_written_over(
    objects: Objects, own: str
) -> None:
    """What is used may change at any time; the bounds may not."""
    planned = plan_quota_change(there(objects, own), QuotaRename(BITFUSION, CORE))
    assert isinstance(planned, QuotaChange)
    ref = planned.ref
    objects.merge(ref, {"spec": {"hard": {BITFUSION: "300"}}})
    with pytest.raises(Invalid):
        objects.json_patch(ref, planned.steps)
    objects.merge(ref, {"spec": {"hard": {BITFUSION: "100"}}})
    objects.merge(ref, {"status": {"used": {BITFUSION: "70"}}}, subresource="status")
    moved = objects.json_patch(ref, planned.steps, dry_run=True)
    assert moved["spec"]["hard"] == {CORE: "100", "pods": "9"}
    assert BITFUSION in there(objects, own)["spec"]["hard"]


def test_without_the_right_the_rest_is_there(plane: ControlPlane, own: str) -> None:
    """Quotas are then not known, and the API server's words say why."""
    rules = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
    grant(plane.rest, f"system:serviceaccount:default:{ACCOUNT}", rules)
    token = service_account_token(plane.rest, "default", ACCOUNT)
    mine = str(plane.kubeconfig(token, ACCOUNT))
    data = orjson.loads(ran(mine, "inspect", "-o", "json").stdout)
    (told,) = (warning for warning in data["warnings"] if warning["about"] == "quotas")
    assert "resourcequotas is forbidden" in told["what"]
    refused = ran(mine, "migrate-quota")
    assert refused.exit_code == 1
    assert "resourcequotas is forbidden" in refused.stderr
