"""What an operator is warned of, and when there is no warning."""

from functools import partial

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.state.read import ClusterState, Trouble
from gpusharectl.state.render import draw
from gpusharectl.state.troubles import troubles
from gpusharectl.state.view import overview
from tests.builders import bound_json, card, placement, pod_json
from tests.gpusharectl.cluster_states import (
    OURS,
    cluster_state,
    extender,
    in_order,
    kube_scheduler,
    node_of,
    part,
    plugin,
)
from tests.gpusharectl.golden import assert_as_kept, drawn


def found(seen: ClusterState) -> list[tuple[str, str]]:
    return [(one.about, one.what) for one in troubles(seen)]


def of(seen: ClusterState, about: str) -> str:
    return "; ".join(what for name, what in found(seen) if name == about)


def well(*nodes: Json) -> list[Json]:
    plugins = [plugin(each["metadata"]["name"]) for each in nodes]
    return [extender(), kube_scheduler(f"--config={OURS}"), *plugins]


def test_all_is_well() -> None:
    """Then nothing is said; a sick card takes its units from kubelet's count."""
    nodes = [node_of("a", card(0, 29), card(1, 29, healthy=False)), node_of("b")]
    pods = [bound_json(placement("p", 0, 5, node="a"))]
    assert found(cluster_state(nodes, pods)) == []


def test_annotations_that_mean_nothing() -> None:
    """Once for all pods that have the same, and not for those who write ours."""
    wrong = {"baidu.com/vcuda-model": "Tesla P4"}
    pods = [pod_json(f"p{n}", units=1, annotations=wrong) for n in range(5)]
    right = pod_json("right", units=1, annotations={names.MODELS: "Tesla P4"})
    node = node_of("n")
    seen = cluster_state([node], [*pods, right], parts=well(node))
    ((about, what),) = found(seen)
    assert about == "default/p0, default/p1, default/p2 and 2 more"
    assert what == (
        "the annotation baidu.com/vcuda-model is unknown here; did you mean "
        "baidu.com/vcuda-models?"
    )


def test_what_others_found_comes_first() -> None:
    """Such as what is wrong with this host's files."""
    other = Trouble("cp", "its manifest is no YAML", "mend it")
    assert next(iter(troubles(cluster_state(parts=[]), [other]))) == other


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "there is no extender pod in kube-system"),
        ([extender(ready=False)], "its pod in kube-system is not ready"),
        ([extender("x", ready=False), extender("y")], ""),
    ],
    ids=["none", "not-ready", "one-of-two"],
)
def test_the_extender(parts: list[Json], words: str) -> None:
    """One that is ready will do."""
    said = of(cluster_state(parts=parts), "extender")
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([f"--config={OURS}"], ""),
        (["--config", OURS], ""),
        (["--config=/etc/rancher/k3s/vcuda/scheduler.yaml"], ""),
        ([], "without --config"),
        (["--config=/etc/other.yaml"], "with --config=/etc/other.yaml"),
        (["--config"], "without --config"),
    ],
)
def test_a_scheduler_that_does_not_ask_us(command: list[str], words: str) -> None:
    """As after ``kubeadm upgrade``, or on a control-plane node that joined later."""
    seen = cluster_state(parts=[extender(), kube_scheduler(*command)])
    said = of(seen, "kube-scheduler-cp")
    assert words in said
    assert bool(words) == bool(said)


def test_each_control_plane_node_has_its_own() -> None:
    """The one without our stanza is named."""
    parts = [
        extender(),
        kube_scheduler(f"--config={OURS}", node="cp-1"),
        kube_scheduler(node="cp-2"),
    ]
    assert [name for name, _ in found(cluster_state(parts=parts))] == [
        "kube-scheduler-cp-2"
    ]


def test_a_host_that_has_told_more_is_not_told_of_twice() -> None:
    """Its files say what exactly is missing."""
    told = Trouble("cp", "the manifest no longer names our configuration", "install")
    seen = cluster_state(parts=[extender(), kube_scheduler()])
    assert list(troubles(seen, [told])) == [told]


def test_beside_a_second_scheduler_the_first_needs_no_stanza() -> None:
    """Two that both ask would be two books for the same cards."""
    second = part("gpushare-scheduler-x", "gpushare-scheduler")
    assert found(cluster_state(parts=[second, kube_scheduler()])) == []


@pytest.mark.parametrize(
    ("plugins", "words"),
    [
        ([], "has no device plugin"),
        ([plugin("a", ready=False)], "its plugin is not ready"),
        ([plugin("b")], "has no device plugin"),
        ([plugin("a", ready=False), plugin("a")], ""),
    ],
    ids=["none", "not-ready", "elsewhere", "old-and-new"],
)
def test_a_labelled_node_needs_a_device_plugin(plugins: list[Json], words: str) -> None:
    """One pod that is ready, there."""
    seen = cluster_state([node_of("a", card(0, 29))], parts=[extender(), *plugins])
    assert words in of(seen, "a")
    assert bool(words) == bool(of(seen, "a"))


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ("True", ""),
        ("False", "is not ready"),
        ("Unknown", "does not report its status"),
    ],
)
def test_a_node_with_cards_is_ready(ready: str, words: str) -> None:
    """What runs there stays charged, whatever has become of it."""
    node = node_of("a", card(0, 29), ready=ready)
    assert words in of(cluster_state([node]), "a")
    assert bool(words) == bool(found(cluster_state([node])))


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ({names.MEMORY: 29, names.CORE: 100}, ""),
        ({names.MEMORY: 0, names.CORE: 0}, "offers 0 of baidu.com/vcuda-memory"),
        ({names.MEMORY: 29, names.CORE: 0}, "offers 0 of baidu.com/vcuda-core"),
        ({}, "offers n/a of baidu.com/vcuda-memory"),
        ({names.MEMORY: 28, names.CORE: 100}, "offers 28 of"),
    ],
)
def test_kubelet_must_count_what_was_published(
    offered: dict[str, int], words: str
) -> None:
    """Unknown is n/a, never 0."""
    said = of(cluster_state([node_of("a", card(0, 29), offered=offered)]), "a")
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize("healthy", [True, False])
def test_kubelet_knows_nothing_of_a_card_that_is_sick(healthy: bool) -> None:
    """A node whose only card is sick offers nothing, and that is right."""
    node = node_of("a", card(0, 29, healthy=healthy), offered={})
    assert bool(found(cluster_state([node]))) == healthy


def test_an_annotation_that_cannot_be_read() -> None:
    """It names the field."""
    node = node_of("a", annotations={names.CARDS: '{"v": 1, "cards": 5}'})
    assert "baidu.com/vcuda-cards.cards: must be a list" in of(
        cluster_state([node]), "a"
    )


@pytest.mark.parametrize("key", [names.CORDON, names.CLEAR])
def test_orders_on_cards_that_are_not_there(key: str) -> None:
    """Mostly a slip of the key."""
    node = node_of("a", card(0, 29), annotations={key: "GPU-typo,GPU-0"})
    assert of(cluster_state([node]), "a") == (
        f"{key} names cards that the node does not have: GPU-typo"
    )


def test_a_placement_that_cannot_be_read() -> None:
    """The pod is charged on every card, and somebody wrote nonsense."""
    pod = pod_json("p", units=5, node="a", annotations={names.PLACEMENT: "nonsense"})
    seen = cluster_state([node_of("a", card(0, 29))], [pod])
    assert "is not JSON" in of(seen, "default/p")
    assert "the card of default/p is not known" in of(seen, "a")


def test_a_card_that_is_promised_twice() -> None:
    """By units or by cores; room that is only kept does not count."""
    pods = [bound_json(placement(f"p{n}", 0, 20, 1, node="a")) for n in range(2)]
    seen = cluster_state([node_of("a", card(0, 29))], pods)
    assert "pods hold 40 of 29 units" in of(seen, "a")
    cores = [bound_json(placement(f"p{n}", 0, 1, 60, node="a")) for n in range(2)]
    seen = cluster_state([node_of("a", card(0, 29))], cores)
    assert "120 of 100 cores" in of(seen, "a")


@pytest.mark.parametrize(
    ("reason", "told"),
    [("CreateContainerConfigError", True), ("ImagePullBackOff", False)],
)
def test_a_pod_that_is_kept_waiting(reason: str, told: bool) -> None:
    """By the device plugin; what else keeps it is not ours to say."""
    pod = bound_json(placement("p", 0, 5, node="a"))
    waits = {"reason": reason, "message": "words"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}}]
    seen = cluster_state([node_of("a", card(0, 29))], [pod])
    assert bool(of(seen, "default/p")) == told


def webhook_state(ready: list[bool], reviewed: bool | None) -> ClusterState:
    node = node_of("gpu-1", card(0, 29))
    pods = [
        part(f"gpushare-webhook-{at}", "gpushare-webhook", ready=well)
        for at, well in enumerate(ready)
    ]
    return cluster_state([node], parts=[*in_order(node), *pods], reviewed=reviewed)


@pytest.mark.parametrize(
    ("ready", "reviewed"),
    [
        ([True, True], True),
        ([False, True], True),
        ([], False),
        ([], None),
        ([True], None),
    ],
    ids=["well", "one-of-two", "none-wanted", "not-known", "well-not-known"],
)
def test_a_webhook_that_is_well_or_not_installed(
    ready: list[bool], reviewed: bool | None
) -> None:
    assert found(webhook_state(ready, reviewed)) == []


OF_PODS = "describe pods -l app.kubernetes.io/name=gpushare-webhook"


@pytest.mark.parametrize(
    ("ready", "reviewed", "words", "do"),
    [
        (
            [False, False],
            True,
            "none of its 2 pods in kube-system is ready; unt",
            OF_PODS,
        ),
        (
            [False],
            None,
            "its pod in kube-system is not ready; until one",
            OF_PODS,
        ),
        ([False], False, "so pods are created unchecked", OF_PODS),
        (
            [],
            True,
            "it has no pod in kube-system; until one is ready, no pod",
            "deploy",
        ),
    ],
    ids=["none-ready", "not-known", "not-called", "no-pod"],
)
def test_a_webhook_that_is_not_ready(
    ready: list[bool], reviewed: bool | None, words: str, do: str
) -> None:
    """The consequence for pods, and where to look."""
    (one,) = troubles(webhook_state(ready, reviewed))
    assert one.about == "webhook"
    assert words in one.what
    assert do in one.do


def test_the_screen_of_a_webhook_that_is_down() -> None:
    seen = overview(webhook_state([False, False], reviewed=True))
    assert_as_kept("inspect-webhook_down", drawn(partial(draw, seen=seen)))
