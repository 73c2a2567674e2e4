"""kubelet's own list of who holds what, asked with patience and a deadline."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from deviceplugin.pod_resources import KubeletSilentError, PodResources
from gpushare.kube import names
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kube.proto.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)

M, C = names.MEMORY, names.CORE
NAME = ("default", "a")
FOREVER_S = 60.0


def pod(name: str, **containers: list[tuple[str, str]]) -> pb.PodResources:
    """Of each container, resource and id of its devices, one entry an id."""
    return pb.PodResources(
        namespace="default",
        name=name,
        containers=[
            pb.ContainerResources(
                name=one,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=[text])
                    for resource, text in held
                ],
            )
            for one, held in containers.items()
        ],
    )


class Lister(PodResourcesListerServicer):
    """A kubelet that is busy as often as it is told to be."""

    def __init__(self) -> None:
        self.pods = [pod("a", main=[(M, "m1"), (C, "c1"), (M, "m2"), ("x/y", "z")])]
        self.busy = 0
        self.code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def answer(self, context: grpc.ServicerContext) -> None:
        if self.busy:
            self.busy -= 1
            context.abort(self.code, "rejected by rate limit")

    def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.answer(context)
        return pb.ListPodResourcesResponse(pod_resources=self.pods)


class WithGet(Lister):
    """One since 1.34."""

    def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        self.answer(context)
        for one in self.pods:
            if one.name == request.pod_name:
                return pb.GetPodResourcesResponse(pod_resources=one)
        context.abort(grpc.StatusCode.UNKNOWN, "not found")
        raise AssertionError


Serve = Callable[[Lister], PodResources]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(lister: Lister) -> PodResources:
            server = grpc.server(ThreadPoolExecutor(2))
            add_PodResourcesListerServicer_to_server(lister, server)
            server.add_insecure_port(f"unix:{tmp_path / 'kubelet.sock'}")
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            made = PodResources(tmp_path / "kubelet.sock")
            stack.callback(made.close)
            return made

        yield start


HELD = {"main": {M: {"m1", "m2"}, C: {"c1"}}}


def test_each_container_with_what_it_holds_of_ours(serve: Serve) -> None:
    lister = Lister()
    lister.pods.append(pod("b", x=[], y=[("x/y", "z")]))
    listed = serve(lister).list(FOREVER_S)
    assert listed.pods == {NAME: HELD, ("default", "b"): {"x": {}, "y": {}}}
    assert listed.holder == dict.fromkeys(("m1", "m2", "c1"), NAME)
    assert listed.held(("default", "none")) == {}


def test_what_changed_is_read_again(serve: Serve) -> None:
    lister = Lister()
    resources = serve(lister)
    first = resources.list(FOREVER_S)
    lister.pods.append(pod("b", main=[(M, "m3")]))
    second = resources.list(FOREVER_S)
    assert second.held(NAME) is first.held(NAME)
    lister.pods[0] = pod("a", main=[(M, "m9")])
    third = resources.list(FOREVER_S)
    assert third.held(NAME) == {"main": {M: {"m9"}}}
    assert third.held(("default", "b")) == {"main": {M: {"m3"}}}
    lister.pods.clear()
    assert resources.list(FOREVER_S).pods == {}


def test_a_busy_kubelet_is_asked_again(serve: Serve) -> None:
    """It answers 100 questions a second, of all its clients together."""
    lister = WithGet()
    lister.busy = 3
    resources = serve(lister)
    assert resources.list(FOREVER_S).held(NAME) == HELD
    lister.busy = 3
    assert resources.get(NAME, FOREVER_S) == HELD


def test_a_kubelet_that_stays_busy(serve: Serve) -> None:
    lister = Lister()
    resources = serve(lister)
    # To be connected takes a busy machine longer than what it is given here.
    resources.list(FOREVER_S)
    lister.busy = 10**6
    with pytest.raises(KubeletSilentError, match="RESOURCE_EXHAUSTED: rejected by"):
        resources.list(0.5)
    lister.code = grpc.StatusCode.INTERNAL
    with pytest.raises(KubeletSilentError, match="INTERNAL"):
        resources.list(FOREVER_S)


@pytest.mark.parametrize(
    ("lister", "name", "found"),
    [(WithGet(), "a", HELD), (WithGet(), "none", None), (Lister(), "a", None)],
    ids=["there", "not-there", "before-1.34"],
)
def test_one_pod(serve: Serve, lister: Lister, name: str, found: object) -> None:
    """None where kubelet cannot tell: then its list has to do."""
    assert serve(lister).get(("default", name), FOREVER_S) == found
