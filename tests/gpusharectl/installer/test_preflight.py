"""What the checks say of a cluster, a host and its nodes."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.facts import DEVICE_PLUGIN, EXTENDER, SECOND_SCHEDULER
from gpusharectl.installer.kube_scheduler.this_host import Flavour
from gpusharectl.installer.nodes.facts import SharedCards, SurveyedNode, survey_node
from gpusharectl.installer.options import (
    CommonOptions,
    InstallOptions,
    UninstallOptions,
)
from gpusharectl.installer.preflight import (
    Weight,
    judge_cluster,
    judge_host,
    judge_nodes,
)
from gpusharectl.installer.survey import ClusterFacts
from tests.gpusharectl.installer.installed_cluster import CARDS, CONTROL_PLANE, node


def view(
    name: str = "cp", *, labels: Json | None = None, **status: Any
) -> SurveyedNode:
    body = node(name, "10.0.0.1", labels={CONTROL_PLANE: "", **(labels or {})})
    body["status"].update(status)
    return survey_node(body)


WORKLOADS = {"extended": EXTENDER, "second": SECOND_SCHEDULER, "plugin": DEVICE_PLUGIN}


def facts(*nodes: SurveyedNode, **more: Any) -> ClusterFacts:
    """Facts with some changed, those of what is installed and served too."""
    whole = ClusterFacts("v1.36.3", Flavour.KUBEADM, nodes or (view(),), "cp")
    return changed(replace(whole, driver_here=True), **more)


def changed(given: ClusterFacts, **more: Any) -> ClusterFacts:
    images = {WORKLOADS[name]: "i" for name in WORKLOADS if more.pop(name, False)}
    if images:
        more["images"] = {**given.installed.images, **images}
    parts = {}
    for part in ("installed", "serves"):
        there = getattr(given, part)
        of_part = {name for name in more if hasattr(there, name)}
        parts[part] = replace(there, **{name: more.pop(name) for name in of_part})
    return replace(given, **more, **parts)


@pytest.mark.parametrize(
    ("version", "weight", "words"),
    [
        ("1.36.3", Weight.OK, "1.36.3 · kubeadm · 1 control-plane node · c"),
        ("1.26.0+k3s1", Weight.OK, "1.26.0+k3s1 · kubeadm"),
        ("1.25.9", Weight.REFUSAL, "1.25.9 is too old: 1.26 to 1.37 are"),
        ("1.38.0", Weight.WARNING, "1.38.0 is newer than the tested"),
        ("master", Weight.WARNING, "master is an unknown version"),
    ],
)
def test_versions(version: str, weight: Weight, words: str) -> None:
    first, *_ = judge_cluster(replace(facts(), version=f"v{version}"), InstallOptions())
    assert first.weight is weight
    assert first.text.startswith(f"Kubernetes {words}")


def test_a_cluster_of_kubeadm_is_not_called_managed_from_outside() -> None:
    """Its kube-schedulers can be seen as pods; those of a managed one cannot."""
    for schedulers, words in (((), "managed"), (("cp-1",), "kubeadm, seen from")):
        given = replace(MANAGED, schedulers=schedulers)
        first, *_ = judge_cluster(given, HERE)
        assert first.text.split(" · ")[1].startswith(words)


SECOND, HERE = InstallOptions(second_scheduler=True), InstallOptions()


LEAVING = UninstallOptions()
BARE = facts(survey_node(node("cp", "10.0.0.1")))
NOT_READY = {"type": "Ready", "status": "False"}
SILENT = facts(view(conditions=[{**NOT_READY, "status": "Unknown"}]))
MANAGED = facts(flavour=Flavour.MANAGED, here="")


@pytest.mark.parametrize(
    ("given", "choice", "words"),
    [
        (
            facts(extended=True),
            SECOND,
            "the default scheduler calls the gpushare extender",
        ),
        (facts(second=True), HERE, "the second scheduler is installed here"),
        (facts(second=True), SECOND, ""),
        (facts(extended=True), HERE, ""),
        (MANAGED, HERE, "this host runs no kube-scheduler"),
        (
            replace(MANAGED, schedulers=("cp-1", "cp-2")),
            HERE,
            "the cluster's kube-scheduler runs on cp-1, cp-2",
        ),
        (MANAGED, SECOND, ""),
        (facts(here=""), HERE, "is this the right context?"),
        (facts(here=""), SECOND, ""),
        (BARE, HERE, "node cp lacks the label node-role.kubernetes.io/control-plane"),
        (BARE, LEAVING, ""),
        (SILENT, HERE, "the kubelet of this host has stopped to report"),
        (SILENT, LEAVING, "the kubelet of this host has stopped to report"),
        # Such as before a network plugin: kubelet starts pods of the host's network.
        (facts(view(conditions=[NOT_READY])), LEAVING, ""),
        (MANAGED, LEAVING, ""),
        (changed(MANAGED, extended=True), LEAVING, "this host runs no kube-scheduler"),
        (replace(MANAGED, stamped=("cp",)), LEAVING, "host runs no kube-scheduler"),
    ],
)
def test_who_schedules(given: ClusterFacts, choice: CommonOptions, words: str) -> None:
    found = (
        judge_cluster(given, choice)
        if isinstance(choice, InstallOptions)
        else judge_host(given, leaving=True)
    )
    refused = [one.text for one in found if one.weight is Weight.REFUSAL]
    assert bool(refused) == bool(words)
    assert all(words in one for one in refused)


OK, WARNING, REFUSAL = Weight.OK, Weight.WARNING, Weight.REFUSAL
NVIDIA = {"runtimeHandlers": [{"name": ""}, {"name": "nvidia"}]}
SIGN = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "Tesla-P4"}
SIGNED = view(labels=SIGN)
OLD = view(nodeInfo={"kubeletVersion": "v1.25.3"})
OURS = view(allocatable={"baidu.com/vcuda-core": "100"})
THEIRS = view(allocatable={"nvidia.com/gpu": "2", "amd.com/gpu": "1", "cpu": "4"})
ZERO = view(allocatable=dict.fromkeys(("baidu.com/vcuda-core", "nvidia.com/gpu"), "0"))
SHARES = view(allocatable={"aliyun.com/gpu-mem": "8"})
RUNC = view(runtimeHandlers=[{"name": "runc"}])
K3S = {"kubeletVersion": "v1.36.3+k3s1", "containerRuntimeVersion": "containerd://2.1"}
K3S_RUNC = view(nodeInfo=K3S, runtimeHandlers=[{"name": "runc"}])
CLASS = {"runtime_classes": ("nvidia",)}
TOOLKIT = "NVIDIA container toolkit"
ITS_START = "restart k3s there, which looks for it only at its start"
ELSEWHERE = {"here": "x"}
NODES = {
    "driver here": (view(), {}, OK, "the driver is loaded · containerd 2.4.2"),
    "no driver here": (
        *(SIGNED, {"driver_here": False}, WARNING),
        "node cp: no NVIDIA driver is loaded on this host",
    ),
    "signs elsewhere": (
        *(SIGNED, ELSEWHERE, OK),
        "node cp: label nvidia.com/gpu.present, Tesla-P4 · containerd 2.4.2",
    ),
    "no sign": (view(), ELSEWHERE, WARNING, "node cp: it shows no sign of a GPU"),
    "old kubelet": (OLD, {}, REFUSAL, "kubelet v1.25.3 is too old"),
    "away": (view(conditions=[]), {}, WARNING, "is not Ready; its device plugin start"),
    "ours by another": (OURS, {}, REFUSAL, "device plugin already offers baidu"),
    "ours by our own": (OURS, {"plugin": True}, OK, "node cp"),
    "at zero": (ZERO, {}, OK, "the driver is loaded"),
    "the same cards": (THEIRS, {}, Weight.DOUBT, "the same cards (nvidia.com/gpu); "),
    "their shares": (SHARES, {}, Weight.DOUBT, "same cards (aliyun.com/gpu-mem); "),
    "no runtime": (RUNC, {}, WARNING, "containerd 2.4.2 has no runtime called nvidia"),
    "no class": (view(**NVIDIA), {}, WARNING, "cluster has no RuntimeClass nvidia"),
    "a class": (view(**NVIDIA), CLASS, OK, "node cp"),
    # k3s itself makes the class, also where no node has the runtime.
    "k3s, no runtime": (
        *(K3S_RUNC, CLASS, WARNING),
        f"no runtime called nvidia; install the {TOOLKIT} there, then {ITS_START}",
    ),
    "k3s, runtimes not told": (
        *(view(nodeInfo=K3S), CLASS, WARNING),
        f"does not report its runtimes; if the {TOOLKIT} came after k3s, {ITS_START}",
    ),
    "k3s, no class": (view(nodeInfo=K3S), {}, OK, "node cp"),
    "k3s, a runtime": (view(nodeInfo=K3S, **NVIDIA), CLASS, OK, "node cp"),
    "runtimes not told": (view(), CLASS, OK, "node cp"),
}


@pytest.mark.parametrize(
    ("seen", "more", "weight", "words"), NODES.values(), ids=NODES.keys()
)
def test_nodes(seen: SurveyedNode, more: Json, weight: Weight, words: str) -> None:
    (found,) = judge_nodes(facts(seen, **more), ["cp"])
    assert found.weight is weight
    assert words in found.text


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        ([], True),
        ([view(name="gpu-2", labels={"baidu.com/vcuda": "true"})], True),
        ([view(name="cpu-1")], False),
        ([view(name="gpu-2", labels={"baidu.com/vcuda-scheduler": "true"})], False),
    ],
)
def test_a_second_scheduler_wants_a_node_without_cards(
    others: list[SurveyedNode], refused: bool
) -> None:
    """Or one of which an operator says that it may be there."""
    seen = facts(view(), *others)
    (first, *_) = judge_nodes(seen, ["cp"], second_scheduler=True)
    assert (first.weight is Weight.REFUSAL) is refused
    assert ("kubectl label node cp baidu.com/vcuda-scheduler=true" in first.remedy) is (
        refused
    )


def test_cards_that_cannot_be_read_are_unknown_and_not_none() -> None:
    body = node("gpu-1", "10.0.0.2")
    assert survey_node(body).cards is None
    body["metadata"]["annotations"] = {"baidu.com/vcuda-cards": "{"}
    assert survey_node(body).cards is None
    body["metadata"]["annotations"] = {"baidu.com/vcuda-cards": CARDS}
    assert survey_node(body).cards == SharedCards(1, 29, "")
