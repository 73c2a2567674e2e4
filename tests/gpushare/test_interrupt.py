"""Ctrl-C while a program starts, at any of its imports, and while it waits."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpusharectl.terminal import kubeconfig_for

KUBECONFIG = "one that can be read"
INTERRUPTED_AT = """
import os, signal, sys
from importlib import import_module
from importlib.abc import MetaPathFinder
# Whoever runs the tests in the background may have them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
last, module, sys.argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]

class Counter(MetaPathFinder):
    seen = 0

    def find_spec(self, *_):
        Counter.seen += 1
        if Counter.seen == last:
            os.kill(os.getpid(), signal.SIGINT)

run = import_module(module + ".__main__").run
sys.meta_path.insert(0, Counter())
run()
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, ["gpusharectl", "--version"]),
        (30, ["gpusharectl", "--help"]),
        (80, ["kubectl-vcuda", "top"]),
        (200, ["kubectl-vcuda", "inspect"]),
        (500, ["kubectl-vcuda", "inspect", "--kubeconfig", KUBECONFIG]),
        (300, ["gpusharectl", "install"]),
        (300, ["gpusharectl", "demo"]),
        (100, ["kubectl_complete-vcuda", "why", ""]),
        (1, ["deviceplugin", "serve"]),
        (300, ["exporter"]),
    ],
)
def test_ctrl_c_at_start_says_nothing(
    tmp_path: Path, number: int, words: list[str]
) -> None:
    """Interrupted at the import with this number, under each name of the program."""
    config = kubeconfig_for("http://127.0.0.1:1", tmp_path / "kubeconfig")
    words = [str(config) if word == KUBECONFIG else word for word in words]
    module = words[0] if words[0] in ("deviceplugin", "exporter") else "gpusharectl"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, str(number), module, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


SIGNALLED = """
import signal, sys, threading, time
from gpushare.interrupt import wait_for_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))

threading.Thread(target=interrupt, daemon=True).start()
wait_for_interrupt()
print("ended")
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_does_not_wake_the_main_thread(number: int) -> None:
    """It ends the wait all the same.

    Another thread gets it here; one that comes just before the wait is as silent.
    """
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
