"""``top`` over HTTP on a small cluster, once and on a terminal."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner, Result

from gpusharectl.commands import main
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.gpusharectl.conftest import put
from tests.gpusharectl.terminal import Terminal
from tests.gpusharectl.top_states import exporter


@pytest.fixture(scope="module", autouse=True)
def unreachable_exporter(cluster: Embedded) -> None:
    put(cluster, exporter("node-2"))


def ran(kubeconfig: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["top", *words, "--kubeconfig", kubeconfig])


@pytest.mark.parametrize("words", [[], ["--once", "-A", "--every", "1"]])
def test_without_a_terminal_it_is_shown_once(
    kubeconfig: str, words: Sequence[str]
) -> None:
    """Of use nothing is known, and it is said why."""
    found = ran(kubeconfig, *words)
    assert found.exit_code == 0
    said = " ".join(found.output.split())
    assert "2 nodes, 3 cards, 38 GiB: 32.75 allotted (86 %), used: n/a" in said
    assert "default/cuda-2 node-2 0 ░░░░░░░··· n/a 5.00 n/a 1" in said
    assert "node-1: no exporter runs on the node" in said
    assert "computed from" not in said
    assert "computed from" in ran(kubeconfig, *words, "-v").output
    assert "node-2: its exporter does not answer: " in said
    assert "\x1b" not in found.output


def test_a_pipe_is_never_taken_for_a_terminal(
    kubeconfig: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where colours are wanted in it: it would never end."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = ran(kubeconfig)
    assert found.exit_code == 0
    assert "\x1b[?1049h" not in found.output
    assert "\x1b[" in found.output


def test_one_namespace_and_one_node(kubeconfig: str) -> None:
    found = ran(kubeconfig, "-n", "default", "--node", "node-2").output
    assert "default/cuda-2" in found
    assert "node-1" not in found
    assert "default/cuda-2" not in ran(kubeconfig, "-n", "edge").output


@pytest.fixture
def terminal(kubeconfig: str) -> Iterator[Terminal]:
    words = ["top", "--kubeconfig", kubeconfig, "--every", "600"]
    found = Terminal([sys.executable, "-m", "gpusharectl", *words])
    yield found
    found.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    "end", ["q", signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP]
)
def test_on_a_terminal_it_stays(terminal: Terminal, end: str | signal.Signals) -> None:
    """Until a key or a signal; then the terminal is as before, with the last picture.

    That is no error: it is how one ends it.
    """
    before = terminal.modes()
    terminal.read_until("q quit")
    shown, begun, _ = terminal.said.partition("\x1b[?1049h")
    assert begun
    assert "default/app-1" not in shown
    assert "default/app-1" in terminal.said
    assert not terminal.echoes()
    terminal.send(end)
    assert terminal.end() == 0
    _, ended, after = terminal.said.partition("\x1b[?1049l")
    assert ended
    assert "default/app-1" in after
    assert "\x1b[?25h" in terminal.said, "the cursor is shown again"
    assert "Traceback" not in terminal.said
    assert terminal.modes() == before


@pytest.mark.processes
def test_keys_choose_what_is_shown(terminal: Terminal) -> None:
    terminal.read_until("q quit")
    terminal.send("n")
    terminal.read_until("by name")
    terminal.send("/cuda-")
    terminal.read_until("filter: cuda-")
    terminal.send("\r")
    terminal.read_until('only "cuda-"')
    terminal.send("q")
    assert terminal.end() == 0
    _, _, after = terminal.said.rpartition("\x1b[?1049l")
    assert "default/cuda-2" in after
    assert "default/app-1" not in after


@pytest.mark.processes
def test_ctrl_z_leaves_the_terminal_to_the_shell(terminal: Terminal) -> None:
    """And it goes on where it was."""
    before = terminal.modes()
    terminal.read_until("q quit")
    terminal.send(signal.SIGTSTP)
    terminal.read_until("\x1b[?1049l")
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    assert terminal.modes() == before
    terminal.said = ""
    terminal.send(signal.SIGCONT)
    terminal.read_until("q quit")
    assert "\x1b[?1049h" in terminal.said
    assert not terminal.echoes()
    terminal.send("q")
    assert terminal.end() == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--node", "nod"], 1, 'there is no node "nod"; there are: cp, node-1, node-2'),
        (["-n", "edge", "-A"], 2, "-n names one namespace, -A means all of them"),
        (["-n", "edge", "--by", "card"], 2, "-n is for pods"),
    ],
)
def test_what_cannot_be(
    kubeconfig: str, words: Sequence[str], code: int, said: str
) -> None:
    """A sentence, and the exit code that is documented."""
    found = ran(kubeconfig, *words)
    assert found.exit_code == code
    assert said in " ".join(found.output.split())
