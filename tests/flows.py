"""Count the product's files that take part in one operation.

``python -m tests.flows filter`` runs the operation twice and counts the files of which
a function is called the second time; ``--names`` lists them. Stand-ins, generated stubs
and threads that follow the cluster or kubelet meanwhile do not count.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType

from gpusharectl.state.render import draw_overview
from gpusharectl.state.view import build_overview
from gpusharectl.why.command import draw_answer
from gpusharectl.why.explain import explain_pod
from tests.builders import pod_json
from tests.deviceplugin.node_fixture import NodeFixture
from tests.extender.server.test_app import Running
from tests.gpusharectl.cluster_states import SCENES
from tests.gpusharectl.golden import drawn

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "deviceplugin",
    "exporter",
    "extender",
    "gpushare",
    "gpusharectl",
    "webhook",
)
PRODUCT = tuple(f"{package}/" for package in (*PACKAGES, "manifests"))
NOT_COUNTED = ("gpushare/kube/proto/", "gpusharectl/demo/fakeapi/")

Operation = Callable[[], object]


@contextmanager
def filtering(*, new: bool) -> Iterator[Operation]:
    """Answer a filter about a pod like the one before, or the first of its kind."""
    stop, units = Event(), iter(range(4, 20))
    running = Running(stop)

    def ask() -> None:
        pod = pod_json(units=next(units) if new else 4)
        body = {"Pod": pod, "Nodes": None, "NodeNames": ["n", "gone"]}
        assert (running.post("filter", body).json or {})["NodeNames"] == ["n"]

    yield ask
    stop.set()


@contextmanager
def allocating() -> Iterator[Operation]:
    """Answer kubelet's Allocate and PreStartContainer for one pod."""
    with tempfile.TemporaryDirectory() as folder, NodeFixture(Path(folder)) as node:
        bound = [node.bind(f"pod-{number}", units=4) for number in range(2)]
        yield lambda: node.run(bound.pop())


def explaining() -> AbstractContextManager[Operation]:
    """Explain a pending pod as ``gpusharectl why`` does, from what was read."""
    seen = SCENES["small"]()
    pod = next(one.body for one in seen.pods.values() if one.record.pod.name == "big")
    return nullcontext(
        lambda: drawn(partial(draw_answer, answer=explain_pod(seen, pod), state=seen))
    )


def inspecting() -> AbstractContextManager[Operation]:
    """Draw the cluster as ``gpusharectl inspect`` does, from what was read."""
    seen = SCENES["small"]()
    return nullcontext(lambda: drawn(partial(draw_overview, seen=build_overview(seen))))


MAIN = "MainThread"
PLUGIN = "baidu.com_vcuda"
OPERATIONS: dict[str, tuple[Callable[[], AbstractContextManager[Operation]], str]] = {
    "filter": (partial(filtering, new=False), MAIN),
    "filter-new": (partial(filtering, new=True), MAIN),
    "allocate": (allocating, PLUGIN),
    "why": (explaining, MAIN),
    "inspect": (inspecting, MAIN),
}
"""By name: the operation, and the prefix of the threads that do its work."""


def files_of(name: str) -> set[str]:
    """Return the product's files with a function that the operation calls."""
    make, threads = OPERATIONS[name]
    called: set[str] = set()
    counting = Event()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and counting.is_set():
            by = frame.f_back
            # kubelet's open stream waits on a thread like those of its calls.
            if by is None or by.f_code.co_name not in ("ListAndWatch", "wait_for"):
                called.add(frame.f_code.co_filename)

    def begin(*_: object) -> None:
        mine = threading.current_thread().name.startswith(threads)
        sys.setprofile(note if mine else None)

    # Threads inherit no hook, so it must be there before they start.
    threading.setprofile(begin)
    try:
        with make() as operation:
            operation()
            counting.set()
            begin()
            operation()
            sys.setprofile(None)
            counting.clear()
    finally:
        threading.setprofile(None)
    ours = {path.removeprefix(f"{ROOT}/") for path in called}
    return {p for p in ours if p.startswith(PRODUCT) and not p.startswith(NOT_COUNTED)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="|".join(OPERATIONS))
    parser.add_argument("--names", action="store_true", help="list the files")
    arguments = parser.parse_args()
    for name in arguments.operations or OPERATIONS:
        found = files_of(name)
        listed = sorted(found) if arguments.names else []
        print("\n  ".join([f"{name}: {len(found)} files", *listed]))


if __name__ == "__main__":
    main()
