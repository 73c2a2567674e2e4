"""Count the files of ours that take part in one operation.

``python -m tests.flows filter`` runs the operation once more after a first, warm run,
and counts the product's files of which a function is called meanwhile. ``--names``
lists them.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("deviceplugin", "extender", "gpushare", "gpusharectl", "manifests")
GENERATED = "gpushare/kube/proto/"

Operation = Callable[[], object]


@contextmanager
def filtering() -> Iterator[Operation]:
    """Ask an assembled extender for one filter through its HTTP application."""
    from extender.settings import ExtenderSettings  # noqa: F401
    from tests.extender.server.test_app import Running

    stop = Event()
    running = Running(stop)
    pod = running.pod("counted", units=4)
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n", "gone"]}
    yield lambda: running.post("filter", args)
    stop.set()


OPERATIONS = {
    "filter": filtering,
}


def files_of(operation: Operation) -> set[str]:
    """Return the product's files with a function that the operation calls."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = (Path(name) for name in seen)
    inside = (path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT))
    names = {path.as_posix() for path in inside if path.parts[0] in PRODUCT}
    return {name for name in names if not name.startswith(GENERATED)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="|".join(OPERATIONS))
    parser.add_argument("--names", action="store_true", help="list the files")
    arguments = parser.parse_args()
    for name in arguments.operations or OPERATIONS:
        with OPERATIONS[name]() as operation:
            operation()
            found = files_of(operation)
        print(f"{name}: {len(found)} files")
        if arguments.names:
            print("".join(f"  {file}\n" for file in sorted(found)), end="")


if __name__ == "__main__":
    main()
