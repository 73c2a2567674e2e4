"""Namespaces with the label for claims on a real API server: the pods that it keeps."""

import pytest
from click.testing import CliRunner

from gpushare.domain.model import Amount
from gpushare.kube.resource_claims.templates import (
    MOST_PARTS,
    name_template,
    write_template,
)
from gpusharectl.commands import main
from tests.controlplane.gate import Gate, asking, container, limits_of
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.since("1.36", "claims that share a device"),
]

ENTRY = "dra.vcuda.baidu.com"
NO_FINALIZERS = {"metadata": {"finalizers": None}}
SHARE = {MEMORY: 20, CORE: 20}


@pytest.fixture
def claiming(gate: Gate) -> Gate:
    """A namespace with the label, of which the API server knows."""
    body = {"metadata": {"labels": {"baidu.com/vcuda-dra": "true"}}}
    gate.rest.must("PATCH", f"/api/v1/namespaces/{gate.namespace}", body)
    ask = asking(container(SHARE))
    wait_until(lambda: "resourceClaims" in gate.admitted(ask)["spec"], "label to hold")
    return gate


def test_a_pod_becomes_one_with_a_claim(claiming: Gate) -> None:
    """The API server takes it and its templates; kubectl shows how to make one."""
    asked = asking(
        container({**SHARE, "cpu": 1}),
        container({MEMORY: 4}, "second"),
        container(name="plain"),
    )
    done = claiming.kubectl("create", "-f", "-", stdin=asked)
    assert done.returncode == 0, done.stderr
    name = "vcuda-m20-c20-m4-c1"
    apply = f"kubectl -n {claiming.namespace} apply -f -"
    assert f"gpusharectl claim-template {name} | {apply}" in done.stderr
    (made,) = claiming.pods()
    (claim,) = made["spec"]["resourceClaims"]
    assert claim == {"name": "vcuda", "resourceClaimTemplateName": name}
    first, second, plain = made["spec"]["containers"]
    assert limits_of(made) == {"cpu": "1"}
    assert limits_of(made, 1) == {}
    assert first["resources"]["claims"] == [{"name": "vcuda", "request": "card-1"}]
    assert second["resources"]["claims"] == [{"name": "vcuda", "request": "card-2"}]
    assert "claims" not in plain["resources"]
    for parts in ([Amount(20, 20)], [Amount(20, 20), Amount(1, 4)]):
        applied = claiming.kubectl("apply", "-f", "-", stdin=write_template(parts))
        assert applied.returncode == 0, applied.stderr


def test_the_longest_command_arrives_whole(claiming: Gate) -> None:
    """The API server cuts no warning of this length."""
    most = {MEMORY: 999_999, CORE: 10}
    pod = asking(*(container(most, f"part-{n}") for n in range(MOST_PARTS)))
    done = claiming.kubectl("create", "--dry-run=server", "-f", "-", stdin=pod)
    assert done.returncode == 0, done.stderr
    name = name_template([Amount(10, 999_999)] * MOST_PARTS)
    apply = f"kubectl -n {claiming.namespace} apply -f -"
    assert f"gpusharectl claim-template {name} | {apply}" in done.stderr


def test_without_the_label_nobody_is_asked(gate: Gate) -> None:
    before = gate.reviews(ENTRY)
    made = gate.admitted(asking(container(SHARE)))
    assert limits_of(made) == {name: str(count) for name, count in SHARE.items()}
    assert gate.reviews(ENTRY) == before


def test_a_pod_waits_for_its_template(claiming: Gate) -> None:
    """The event names it; once it is there, its claim asks what the pod asked."""
    rest, where = claiming.rest, f"/namespaces/{claiming.namespace}"
    made = claiming.admitted(asking(container(SHARE)), dry_run=False)
    name = "vcuda-m20-c20"
    with claiming.plane.start_controller_manager(["resourceclaim-controller"]):
        complaints = wait_until(
            lambda: claiming.events("FailedResourceClaimCreation"),
            "event of the missing template",
        )
        assert name in complaints[0]
        written = CliRunner().invoke(main, ["claim-template", name]).stdout
        done = claiming.kubectl("apply", "-f", "-", stdin=written)
        assert done.returncode == 0, done.stderr
        path = f"/apis/resource.k8s.io/v1{where}/resourceclaims"
        (claim,) = wait_until(lambda: rest.items(path), "claim of the pod")
    (asked,) = claim["spec"]["devices"]["requests"]
    amounts = {"memory": "5Gi", "cores": "20"}
    assert asked["exactly"]["capacity"]["requests"] == amounts
    assert claim["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    rest.must("PATCH", f"{path}/{claim['metadata']['name']}", NO_FINALIZERS)


def test_the_default_of_a_limit_range_is_not_asked_twice(claiming: Gate) -> None:
    """The API server adds it again after the webhook; with a maximum it must stay."""
    limit = {"type": "Container", "max": {MEMORY: "40"}}
    body = {"metadata": {"name": "most"}, "spec": {"limits": [limit]}}
    path = f"/api/v1/namespaces/{claiming.namespace}/limitranges"
    claiming.rest.must("POST", path, body)
    asked = asking(container(SHARE))
    made = wait_until(
        lambda: claiming.admitted(asked),
        "LimitRange to hold",
        accept=lambda found: MEMORY in limits_of(found),
    )
    (claim,) = made["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "vcuda-m20-c20"
    assert set(limits_of(made).values()) == {"0"}
