"""What an operator is warned of, and when there is no warning."""

from dataclasses import replace

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.state.read import ClusterState, Trouble
from gpusharectl.state.troubles import find_troubles
from gpusharectl.state.view import build_overview
from tests.builders import bound_json, card, placement, pod_json
from tests.gpusharectl.cluster_states import (
    CORE,
    MEMORY,
    OURS,
    cluster_state,
    extender,
    in_order,
    kube_scheduler,
    node_of,
    part,
    plugin,
    quota,
)
from tests.gpusharectl.golden import assert_as_kept, draw_screen


def parts(*pods: Json) -> ClusterState:
    return cluster_state(parts=pods)


def scheduler(*command: str) -> ClusterState:
    return parts(extender(), kube_scheduler(*command))


def node(*pods: Json, healthy: bool = True, **more: object) -> ClusterState:
    a = node_of("a", card(0, 29, healthy=healthy), **more)
    return cluster_state([a], pods)


def offered(memory: int, core: int) -> ClusterState:
    return node(offered={names.MEMORY: memory, names.CORE: core})


def plugins(*pods: Json) -> ClusterState:
    return cluster_state([node_of("a", card(0, 29))], parts=[extender(), *pods])


def waiting(reason: str) -> ClusterState:
    pod = bound_json(placement("p", 0, 5, node="a"))
    waits = {"reason": reason, "message": "words"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}}]
    return node(pod)


def pair(units: int, cores: int) -> ClusterState:
    placements = [placement(f"p{n}", 0, units, cores, node="a") for n in range(2)]
    return node(*map(bound_json, placements))


SECOND = part("gpushare-scheduler-x", "gpushare-scheduler")
UNREADY = extender("x", ready=False)
NONSENSE = pod_json("p", units=5, node="a", annotations={names.PLACEMENT: "nonsense"})
TYPO = "names cards that the node does not have: GPU-typo"
RUNS = "kube-scheduler-cp"
CONFIG = "--config=/etc/rancher/k3s/vcuda/scheduler.yaml"


@pytest.mark.parametrize(
    ("seen", "about", "words"),
    [
        (parts(), "extender", "there is no extender pod in kube-system"),
        (parts(UNREADY), "extender", "its pod in kube-system is not ready"),
        (parts(UNREADY, extender("y")), "extender", ""),
        # As after kubeadm upgrade, or on a control-plane node that joined later.
        (scheduler(), RUNS, "without --config"),
        (scheduler("--config"), RUNS, "without --config"),
        (scheduler("--config=/etc/other.yaml"), RUNS, "with --config=/etc/other.yaml"),
        (scheduler(f"--config={OURS}"), RUNS, ""),
        (scheduler("--config", OURS), RUNS, ""),
        (scheduler(CONFIG), RUNS, ""),
        # Two kube-schedulers that call extenders would place pods on the same cards.
        (parts(SECOND, kube_scheduler()), RUNS, ""),
        (plugins(), "a", "has no device plugin"),
        (plugins(plugin("b")), "a", "has no device plugin"),
        (plugins(plugin("a", ready=False)), "a", "its plugin is not ready"),
        (plugins(plugin("a", ready=False), plugin("a")), "a", ""),
        (node(ready="True"), "a", ""),
        (node(ready="False"), "a", "is not ready"),
        (node(ready="Unknown"), "a", "does not report its status"),
        (offered(29, 100), "a", ""),
        (offered(0, 0), "a", "offers 0 of baidu.com/vcuda-memory"),
        (offered(29, 0), "a", "offers 0 of baidu.com/vcuda-core"),
        (offered(28, 100), "a", "offers 28 of"),
        (node(offered={}), "a", "offers n/a of baidu.com/vcuda-memory"),
        # A node whose only card is sick offers nothing, and that is right.
        (node(offered={}, healthy=False), "a", ""),
        (
            node(annotations={names.CARDS: '{"v": 1, "cards": 5}'}),
            "a",
            "baidu.com/vcuda-cards.cards: must be a list",
        ),
        (node(annotations={names.CORDON: "GPU-typo,GPU-0"}), "a", TYPO),
        (node(annotations={names.CLEAR: "GPU-typo,GPU-0"}), "a", TYPO),
        (node(NONSENSE), "default/p", "is not JSON"),
        (node(NONSENSE), "a", "the card of default/p is not known"),
        (pair(20, 1), "a", "pods hold 40 of 29 units"),
        (pair(1, 60), "a", "120 of 100 cores"),
        (waiting("CreateContainerConfigError"), "default/p", "does not start: Create"),
        (waiting("ImagePullBackOff"), "default/p", ""),
    ],
)
def test_each_trouble(seen: ClusterState, about: str, words: str) -> None:
    """Without words there is none."""
    said = "; ".join(one.what for one in find_troubles(seen) if one.about == about)
    assert words in said
    assert bool(words) == bool(said)


def test_all_is_well() -> None:
    """A sick card takes its units from kubelet's count."""
    nodes = [node_of("a", card(0, 29), card(1, 29, healthy=False)), node_of("b")]
    pods = [bound_json(placement("p", 0, 5, node="a"))]
    assert list(find_troubles(cluster_state(nodes, pods))) == []


def test_misspelt_annotations() -> None:
    """Once for all pods that have the same, and not for those that are right."""
    wrong = {"baidu.com/vcuda-model": "Tesla P4"}
    pods = [pod_json(f"p{n}", units=1, annotations=wrong) for n in range(5)]
    right = pod_json("right", units=1, annotations={names.MODELS: "Tesla P4"})
    (one,) = find_troubles(cluster_state([node_of("n")], [*pods, right]))
    assert one.about == "default/p0, default/p1, default/p2 and 2 more"
    assert one.what == (
        "the annotation baidu.com/vcuda-model is unknown here; did you mean "
        "baidu.com/vcuda-models?"
    )


def test_quotas_that_count_nothing() -> None:
    """Once for all quotas with the same keys; other keys of a quota are not named."""
    wrong = {f"limits.{names.MEMORY}": "8", "pods": "9"}
    quotas = [quota(f"team-{n}", hard=wrong) for n in range(5)]
    quotas += [quota("right", hard={CORE: "100", MEMORY: "94"})]
    state = replace(cluster_state([node_of("n")]), quotas=tuple(quotas))
    (trouble,) = find_troubles(state)
    assert trouble.about == "quota team-0/gpu, team-1/gpu, team-2/gpu and 2 more"
    assert trouble.what == (
        f"keys that count nothing: limits.{names.MEMORY}; limit {MEMORY} and {CORE}"
    )


def test_a_host_whose_files_say_more_is_not_reported_twice() -> None:
    """Of several control-plane hosts the other ones are named."""
    of_host = Trouble("cp", "the manifest no longer names our configuration", "install")
    seen = parts(extender(), kube_scheduler(), kube_scheduler(node="cp-2"))
    first, second = find_troubles(seen, [of_host])
    assert first == of_host
    assert second.about == "kube-scheduler-cp-2"


def webhook_state(ready: list[bool], reviewed: bool | None) -> ClusterState:
    node = node_of("gpu-1", card(0, 29))
    pods = [
        part(f"gpushare-webhook-{at}", "gpushare-webhook", ready=well)
        for at, well in enumerate(ready)
    ]
    return cluster_state([node], parts=[*in_order(node), *pods], reviewed=reviewed)


OF_PODS = "describe pods -l app.kubernetes.io/name=gpushare-webhook"


@pytest.mark.parametrize(
    ("ready", "reviewed", "words", "do"),
    [
        ([True, True], True, "", ""),
        ([False, True], True, "", ""),
        ([], False, "", ""),
        ([], None, "", ""),
        ([True], None, "", ""),
        ([False, False], True, "none of its 2 pods in kube-system is ready", OF_PODS),
        ([False], None, "its pod in kube-system is not ready; until one", OF_PODS),
        ([False], False, "so pods are created unchecked", OF_PODS),
        ([], True, "it has no pod in kube-system; until one is ready", "deploy"),
    ],
)
def test_the_webhook(
    ready: list[bool], reviewed: bool | None, words: str, do: str
) -> None:
    """The consequence for pods, and where to look; nothing if it is well or unused."""
    found = list(find_troubles(webhook_state(ready, reviewed)))
    assert [one.about for one in found] == (["webhook"] if words else [])
    assert not words or (words in found[0].what and do in found[0].do)


def test_the_screen_of_a_webhook_that_is_down() -> None:
    seen = build_overview(webhook_state([False, False], reviewed=True))
    assert_as_kept("inspect-webhook_down", draw_screen(seen))
