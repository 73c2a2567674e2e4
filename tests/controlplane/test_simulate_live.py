"""What if, asked of a real API server: what it gives, and who may not ask.

The cluster is in the middle of its day: two nodes with cards, one without; pods that
hold cards by their annotations, pods that wait, pods of others that take CPU and no
card, and controllers with nobody behind them.
"""

import secrets
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner, Result

from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube import facts, names
from gpushare.kube.annotations import encode_cards, encode_placement
from gpusharectl.commands import main
from tests.testbed.controlplane import ControlPlane
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.objects import (
    AT_ONCE,
    deployment,
    new_namespace,
    pod,
    pod_path,
    pod_spec,
    post_node,
    post_pod,
    set_running,
    sweep,
)
from tests.testbed.rest import Json, Rest

pytestmark = [
    pytest.mark.controlplane,
    # Of the test bed's certificate.
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

AT = "2026-01-02T03:04:05Z"
APPS = "/apis/apps/v1"
UNITS = 40
"""Of memory, on each card of both nodes."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"
GETS = {
    "deployments.apps": "edge/app=1",
    "statefulsets.apps": "statefulset/edge/app=1",
    "replicasets.apps": "replicaset/edge/app=1",
    "jobs.batch": "job/edge/app=1",
    "pods": "pod/edge/small=1",
}
LEFT_OUT = "Not tried: 1 pod with scheduling gates; 1 pod that asks for no card."
MEND = (
    "; take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole\n"
)


def card(node: str, index: int) -> CardUUID:
    return CardUUID(f"GPU-{node}-{index}")


def add_node(rest: Rest, name: str, cards: int, cpu: str = "8") -> None:
    """Add a node as the device plugin and kubelet describe it."""
    its_own = [Card(card(name, each), each, UNITS) for each in range(cards)]
    told = {names.CARDS: encode_cards(its_own)} if cards else {}
    post_node(
        rest,
        name,
        cpu=cpu,
        memory="32Gi",
        units=UNITS * cards,
        cores=100 * cards,
        annotations=told,
    )


def runs(
    rest: Rest, a_pod: Json, node: str, on: int | None = None, *, cores: int = 1
) -> Json:
    """Let a pod run on a node, on one card as the extender writes it, or on none."""
    made = post_pod(rest, a_pod)
    metadata = made["metadata"]
    told: dict[str, str] = {}
    if on is not None:
        asked = a_pod["spec"]["containers"][0]["resources"]["requests"]
        held = Amount(cores, int(asked[names.MEMORY]))
        share = Share(card(node, on), held, (ContainerAmount("main", held),))
        ref = PodRef(PodUID(metadata["uid"]), metadata["namespace"], metadata["name"])
        placed = Placement(ref, NodeName(node), (share,))
        told = {names.PLACEMENT: encode_placement(placed, AT)}
    own = {"name": metadata["name"], "annotations": told}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"metadata": own, "target": target}
    rest.must("POST", f"{pod_path(made)}/binding", binding)
    set_running(rest, made)
    return made


@pytest.fixture(scope="module")
def edge(plane: ControlPlane) -> Iterator[str]:
    """The scene's namespace; all tests only read it."""
    rest, space = plane.rest, new_namespace(plane.rest)
    populate(rest, space)
    yield space
    for path, _ in controllers(space):
        rest.must("DELETE", path, AT_ONCE)
    sweep(rest)


def populate(rest: Rest, space: str) -> None:
    add_node(rest, "gpu-1", 2)
    add_node(rest, "gpu-2", 1)
    add_node(rest, "plain", 0)
    runs(rest, pod("chat", space, units=30, cores=1), "gpu-1", 0)
    runs(rest, pod("small", space, units=10, cores=1), "gpu-1", 1)
    runs(rest, pod("voice", space, units=20, cores=1), "gpu-2", 0)
    # Somebody else's, without cards: of gpu-2's eight CPUs it leaves less than four.
    runs(rest, pod("database", space, cpu="4500m"), "gpu-2")
    post_pod(rest, pod("big", space, units=36, cores=1))
    post_pod(rest, pod("crawler", space, cpu="64"))
    gate = {"schedulingGates": [{"name": "example.com/hold"}]}
    post_pod(rest, pod("held-back", space, units=1, cores=1, spec=gate))
    post_extender(rest)
    for path, body in controllers(space):
        rest.must("POST", path, body)


def post_extender(rest: Rest) -> None:
    """Add an extender's pod, by whose environment its policy is known."""
    labels = {facts.PART_NAME: facts.EXTENDER, facts.PART_OF: "gpushare"}
    body = pod("gpushare-extender", facts.SYSTEM, labels=labels)
    env = [{"name": "GPUSHARE_POLICY", "value": "spread"}]
    body["spec"]["containers"][0]["env"] = env
    runs(rest, body, "plain")


def controllers(space: str) -> list[tuple[str, Json]]:
    """Give one of each kind that ``--more`` takes, and where it is posted."""
    spec = pod_spec(units=8, cores=1, cpu="500m")
    app = deployment("app", space, 0, spec)
    labels = app["spec"]["selector"]["matchLabels"]
    plain = {"selector": {"matchLabels": labels}, "template": app["spec"]["template"]}
    own = {"name": "app", "namespace": space}
    once = {"spec": spec | {"restartPolicy": "Never"}}
    apps, batch = f"{APPS}/namespaces/{space}", f"/apis/batch/v1/namespaces/{space}"
    return [
        (f"{apps}/deployments", app),
        (
            f"{apps}/statefulsets",
            {"metadata": own, "spec": plain | {"serviceName": "x"}},
        ),
        (f"{apps}/replicasets", {"metadata": own, "spec": plain | {"replicas": 0}}),
        (f"{batch}/jobs", {"metadata": own, "spec": {"template": once}}),
    ]


def versions(rest: Rest) -> dict[str, str]:
    """Give the resource version of every object that a what-if may have read."""
    paths = ("/api/v1/nodes", "/api/v1/pods", f"{APPS}/deployments", "/api/v1/events")
    more = (f"{APPS}/statefulsets", f"{APPS}/replicasets", "/apis/batch/v1/jobs")
    return {
        f"{path}/{metadata.get('namespace', '')}/{metadata['name']}": metadata[
            "resourceVersion"
        ]
        for path in (*paths, *more)
        for metadata in (body["metadata"] for body in rest.items(path))
    }


def documented() -> list[Json]:
    """Give the rules of the ClusterRole that the document gives to operators."""
    blocks = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1:]
    (text,) = (b.partition("```")[0] for b in blocks if "kind: ClusterRole" in b)
    rules: list[Json] = yaml.safe_load(text)["rules"]
    return rules


def without(verb: str, resource: str) -> list[Json]:
    """Give the documented rules but for one right; it must be among them."""
    name, _, group = resource.partition(".")
    rules = deepcopy(documented())
    (rule,) = (
        rule
        for rule in rules
        if group in rule["apiGroups"] and name in rule["resources"]
    )
    rule["resources"].remove(name)
    verbs = [granted for granted in rule["verbs"] if granted != verb]
    assert len(verbs) == len(rule["verbs"]) - 1
    rules.append({"apiGroups": [group], "resources": [name], "verbs": verbs})
    return [rule for rule in rules if rule["resources"] and rule["verbs"]]


def account(plane: ControlPlane, rules: list[Json]) -> tuple[str, str]:
    """Make an account with exactly these rights; its name, and its kubeconfig."""
    name = f"what-if-{secrets.token_hex(4)}"
    user = f"system:serviceaccount:default:{name}"
    token = service_account_token(plane.rest, "default", name)
    grant(plane.rest, user, rules)
    return user, str(plane.kubeconfig(token, name))


def ran(kubeconfig: str, *words: str) -> Result:
    words = ("simulate", "--live", *words, "--kubeconfig", kubeconfig)
    return CliRunner().invoke(main, words)


def played(kubeconfig: str, *words: str) -> dict[str, Any]:
    done = ran(kubeconfig, *words, "-o", "json")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


@pytest.fixture
def reader(plane: ControlPlane) -> tuple[str, str]:
    """Whoever has the documented rights, and no others."""
    return account(plane, documented())


def where(run: dict[str, Any]) -> dict[str, str | None]:
    return {pod["name"]: pod["node"] for pod in run["pods"]}


def test_as_it_is(edge: str, reader: tuple[str, str]) -> None:
    """What waits is tried beside what runs; what is left out is told."""
    found = played(reader[1])
    (run,) = found["runs"]
    assert (run["policy"], run["end"]["held_units"]) == ("spread", 60)
    assert where(run) == {"big": None}
    assert run["not_placed"][0]["reasons"] == {
        "Insufficient baidu.com/vcuda-memory on one card": 1,
        "Insufficient baidu.com/vcuda-memory": 2,
        "Insufficient baidu.com/vcuda-core": 1,
    }
    assert found["remarks"] == [
        "The policy is the extender's: spread.",
        "Played: 1 pod that waits is tried.",
        LEFT_OUT,
    ]


def test_another_node(edge: str, reader: tuple[str, str]) -> None:
    """The pod that waits goes there, and so much more fits than before."""
    (before,) = played(reader[1], "--room", "20")["runs"]
    (after,) = played(reader[1], "--room", "20", "--add", "gpu-1=2")["runs"]
    # gpu-1 has 30 units free on one card, gpu-2 has 20; a new one has 40 and 40.
    assert [run["room"][0]["number"] for run in (before, after)] == [2, 8]
    assert where(after)["big"] in ("gpu-1-new-1", "gpu-1-new-2")


@pytest.mark.parametrize("what", GETS.values(), ids=GETS)
def test_more_of_each_kind(edge: str, reader: tuple[str, str], what: str) -> None:
    """The documented rights are enough for all that ``--more`` takes."""
    (run,) = played(reader[1], "--more", what.replace("edge", edge))["runs"]
    assert sum("-more-0-0" in name for name in where(run)) == 1


def test_nothing_is_written(
    plane: ControlPlane, edge: str, reader: tuple[str, str]
) -> None:
    """By the API server's own log, and by every object's version."""
    before, mark = versions(plane.rest), plane.audit.mark()
    user, kubeconfig = reader
    words = ["--add", "gpu-1", "--drain", "gpu-2", "--afresh", "--room", "cards=1"]
    played(kubeconfig, *words, "--more", f"{edge}/app=3", "--compare", "frag,spread")
    calls = [call for call in plane.audit.calls(mark) if call.user == user]
    asked = {(call.verb, call.resource) for call in calls if call.resource}
    assert asked == {("list", "nodes"), ("list", "pods"), ("get", "deployments")}
    assert not plane.audit.writes(user, mark)
    assert versions(plane.rest) == before


def refused(done: Result, plane: ControlPlane, user: str, missing: str) -> None:
    """Insist on one sentence, and nothing half printed before it."""
    told = f'Error: {plane.url} does not let "{user}" {missing}{MEND}'
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", told)


@pytest.mark.parametrize(
    ("resource", "told"),
    [("nodes", "list nodes"), ("pods", "list pods in all namespaces")],
)
def test_without_a_list(
    plane: ControlPlane, edge: str, resource: str, told: str
) -> None:
    """It says which, whose it would be, and what to do; and plays nothing."""
    user, kubeconfig = account(plane, without("list", resource))
    for words in ([], ["-o", "json", "--more", f"{edge}/app=1"]):
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
