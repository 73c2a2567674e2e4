"""What was typed, and the command that goes on."""

import shlex

import pytest

from gpusharectl.install.cluster_facts import node_view
from gpusharectl.install.options import (
    InstallOptions,
    UninstallOptions,
    chosen,
    likely,
    node_names,
)
from tests.gpusharectl.install.stand_ins import node


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        (" , ,", ()),
        ("gpu-1", ("gpu-1",)),
        ("gpu-1,gpu-2", ("gpu-1", "gpu-2")),
        ("gpu-2 gpu-1, gpu-2,", ("gpu-2", "gpu-1")),
    ],
)
def test_names_as_people_type_them(text: str, names: tuple[str, ...]) -> None:
    assert node_names(text) == names


def test_unknown_names_are_all_named_with_those_there_are() -> None:
    nodes = [node_view(node(name, "")) for name in ("a", "b")]
    assert chosen(["a", "b"], nodes) is None
    assert str(chosen(["x", "a"], nodes)) == (
        "x is no node of this cluster; its nodes are a, b."
    )
    assert str(chosen(["x", "y"], [])) == (
        "x, y are no nodes of this cluster; its nodes are none at all."
    )
    assert str(chosen([], nodes)) == "No node was named; the cluster's nodes are a, b."


def test_likely_nodes_have_a_sign_our_label_or_the_driver() -> None:
    labelled = node("labelled", "", labels={"baidu.com/vcuda": "true"})
    sign = node("sign", "", labels={"nvidia.com/gpu.present": "true"})
    off = node("off", "", labels={"nvidia.com/gpu.present": "false"})
    views = [node_view(one) for one in (labelled, sign, off, node("here", ""))]
    assert likely(views) == ("labelled", "sign")
    assert likely(views, "here") == ("labelled", "sign", "here")


def test_the_command_that_goes_on_has_what_was_given_and_no_more() -> None:
    assert InstallOptions(dry_run=True).again() == "gpusharectl install"
    choice = InstallOptions(
        nodes=("a", "b"),
        all_gpu_nodes=True,
        yes=True,
        image="x/y:1",
        tls=True,
        with_monitoring=True,
        runtime_class=False,
        restart=True,
        this_node="cp",
        timeout_s=60.0,
        access=("--kubeconfig", "my file"),
    )
    assert shlex.split(choice.again()) == [
        *("gpusharectl", "install", "--kubeconfig", "my file", "--nodes", "a,b"),
        *("--no-runtime-class", "--tls", "--with-monitoring", "--restart", "--yes"),
        *("--image", "x/y:1", "--this-node", "cp", "--timeout", "60"),
    ]


@pytest.mark.parametrize(
    ("tls", "words"), [(None, []), (True, ["--tls"]), (False, ["--no-tls"])]
)
def test_of_tls_there_may_be_no_word(tls: bool | None, words: list[str]) -> None:
    assert shlex.split(InstallOptions(tls=tls).again()) == [
        "gpusharectl",
        "install",
        *words,
    ]


def test_the_way_out_likewise() -> None:
    assert UninstallOptions(dry_run=True).again() == "gpusharectl uninstall"
    leaving = UninstallOptions(
        yes=True, force=True, wait=True, access=("--context", "c")
    )
    assert leaving.again("--force") == (
        "gpusharectl uninstall --context c --wait --yes --force"
    )
