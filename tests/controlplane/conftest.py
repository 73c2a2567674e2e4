"""One control plane for all scenarios; one extender and scheduler for each module."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.controlplane.by_hand import NOBODY
from tests.controlplane.extender import USER, extender
from tests.controlplane.gate import Gate, raised
from tests.controlplane.world import World, beside
from tests.testbed.binaries import Binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import new_namespace, sweep


@pytest.fixture(scope="package")
def plane(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, which know our extender's account."""
    folder = tmp_path_factory.mktemp("controlplane")
    with ControlPlane(binaries, folder, users=[USER]) as running:
        yield running


@pytest.fixture(scope="module")
def alone(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane of a module's own, for objects that would stop others' parts."""
    with ControlPlane(binaries, tmp_path_factory.mktemp("alone")) as running:
        yield running


@pytest.fixture(scope="module")
def shared(plane: ControlPlane) -> Iterator[World]:
    """The extender with its defaults, and a kube-scheduler and kubelet beside it."""
    with beside(plane) as world:
        yield world


@pytest.fixture
def space(plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own; afterwards all nodes and pods vanish."""
    yield new_namespace(plane.rest)
    sweep(plane.rest)


@pytest.fixture
def world(shared: World, space: str) -> World:
    """An empty cluster with the module's extender and scheduler."""
    return replace(shared, namespace=space, nodes=set())


@pytest.fixture(scope="module")
def shared_manual(plane: ControlPlane) -> Iterator[World]:
    """An extender and a kubelet, and no kube-scheduler."""
    with extender(plane, "alone") as ext, StandInKubelet(plane.rest) as kubelet:
        yield World(plane, ext, kubelet, scheduler_name=NOBODY)


@pytest.fixture
def manual(shared_manual: World, space: str) -> World:
    """An empty cluster in which only the test binds pods."""
    return replace(shared_manual, namespace=space, nodes=set())


@pytest.fixture(scope="module")
def webhook(
    plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Gate]:
    """The webhook for cards of 16000 MB, with the module's COMPONENTS and SETTINGS."""
    folder = tmp_path_factory.mktemp("webhook")
    components = getattr(request.module, "COMPONENTS", ())
    settings = getattr(request.module, "SETTINGS", {})
    settings = {"TOTAL_GPU_MEMORY": "16000", **settings}
    with raised(plane, folder, *components, **settings) as gate:
        yield gate


@pytest.fixture
def gate(webhook: Gate, space: str) -> Gate:
    """The webhook, and a namespace of the test's own."""
    return webhook.at(space)
