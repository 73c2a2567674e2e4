"""What if, asked by who may not read the cluster: which right, and what to do."""

from collections.abc import Iterator

import orjson
import pytest
from click.testing import Result

from tests.controlplane.livereader import GETS, account, ran, role, without
from tests.controlplane.livescene import scene
from tests.testbed.controlplane import ControlPlane

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

MEND = (
    "; take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole\n"
)


@pytest.fixture(scope="module")
def edge(plane: ControlPlane) -> Iterator[str]:
    """A namespace of a cluster in the middle of its day; all tests only read it."""
    with scene(plane.rest) as space:
        yield space


def refused(done: Result, plane: ControlPlane, user: str, missing: str) -> None:
    """Insist on one sentence, and nothing half printed before it."""
    told = f'Error: {plane.url} does not let "{user}" {missing}{MEND}'
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", told)


def test_the_documented_role(plane: ControlPlane) -> None:
    """It is one that an API server takes as it stands there."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All"
    assert plane.rest.must("POST", path, role())["rules"] == role()["rules"]


@pytest.mark.parametrize(
    ("resource", "told"),
    [("nodes", "list nodes"), ("pods", "list pods in all namespaces")],
)
def test_without_a_list(
    plane: ControlPlane, edge: str, resource: str, told: str
) -> None:
    """It says which, whose it would be, and what to do; and plays nothing."""
    user, kubeconfig = account(plane, without("list", resource))
    for words in ([], ["--room", "20"], ["-o", "json"], ["--more", f"{edge}/app=1"]):
        refused(ran(kubeconfig, *words), plane, user, told)


@pytest.mark.parametrize(("resource", "what"), GETS.items(), ids=GETS)
def test_without_a_get(
    plane: ControlPlane, edge: str, resource: str, what: str
) -> None:
    """Only ``--more`` of that kind is missed."""
    user, kubeconfig = account(plane, without("get", resource))
    done = ran(kubeconfig, "--more", what.replace("edge", edge))
    refused(done, plane, user, f"get {resource} in {edge}")
    assert ran(kubeconfig).exit_code == 0


def test_all_that_is_missing_at_once(plane: ControlPlane, edge: str) -> None:
    user, kubeconfig = account(plane, [])
    more = ["--more", f"{edge}/app=1", "--more", f"job/{edge}/app=2"]
    lists = "list nodes, list pods in all namespaces"
    gets = f"get deployments.apps in {edge}, get jobs.batch in {edge}"
    refused(ran(kubeconfig, *more), plane, user, f"{lists}, {gets}")


def test_a_right_for_one_object_is_enough(plane: ControlPlane, edge: str) -> None:
    """It is not called missing where another one is."""
    app = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}
    few = [app | {"resourceNames": ["app"]}]
    user, kubeconfig = account(plane, few)
    done = ran(kubeconfig, "--more", f"{edge}/app=1")
    refused(done, plane, user, "list nodes, list pods in all namespaces")


def test_nobody_in_particular(plane: ControlPlane) -> None:
    """Who may not even ask for the own name gets it by the refusal."""
    kubeconfig = plane.kubeconfig("", "anonymous")
    config = orjson.loads(kubeconfig.read_bytes())
    config["users"][0]["user"] = {}
    kubeconfig.write_bytes(orjson.dumps(config))
    done = ran(str(kubeconfig))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not let you list nodes, list pods in all namespaces (" in done.stderr
    assert 'User "system:anonymous" cannot list resource "nodes"' in done.stderr
    assert done.stderr.endswith(MEND)
