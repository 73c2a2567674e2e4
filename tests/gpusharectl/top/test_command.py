"""``top`` over HTTP on a small cluster, once and on a terminal."""

import io
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner, Result
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.text import Text

from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.errors import Unavailable
from gpusharectl.commands import main
from gpusharectl.top.command import watch
from gpusharectl.top.rows import Top
from tests.gpusharectl.conftest import put
from tests.gpusharectl.terminal import Terminal
from tests.gpusharectl.top_states import exporter, top_of


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
    assert "default/cuda-2 node-2 0 n/a 5.00 n/a 1" in said
    assert "node-1: no exporter runs on the node" in said
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_it_stays(terminal: Terminal, number: signal.Signals) -> None:
    """Until Ctrl-C or SIGTERM; then the terminal is as before, with the last picture.

    Ctrl-C is no error: it is how one ends it.
    """
    terminal.read_until("Ctrl-C to quit")
    # A terminal hands out a picture in pieces.
    terminal.read_until("default/app-1")
    shown, begun, _ = terminal.said.partition("\x1b[?1049h")
    assert begun
    assert "default/app-1" not in shown
    assert "default/app-1" in terminal.said
    terminal.process.send_signal(number)
    assert terminal.end() == 0
    _, ended, after = terminal.said.partition("\x1b[?1049l")
    assert ended
    assert "default/app-1" in after
    assert "\x1b[?25h" in terminal.said, "the cursor is shown again"
    assert "Traceback" not in terminal.said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--node", "nod"], 1, 'there is no node "nod"; there are: node-1, node-2'),
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


ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"


class FakeReader:
    """Returns values, or what happens instead; at the end comes Ctrl-C."""

    def __init__(self, *happens: BaseException | None) -> None:
        self.happens = [*happens, KeyboardInterrupt()]

    def __call__(self) -> Top:
        now = self.happens.pop(0)
        if now is not None:
            raise now
        return top_of("at_work")


def watched(*happens: BaseException | None) -> tuple[str, list[str]]:
    """Return what the terminal got, and what was said of each drawing."""
    page, said = io.StringIO(), []

    def frame(_console: Console, _top: Top, lost: str) -> RenderableType:
        said.append(lost)
        return Text(f"picture {lost}")

    console = Console(file=page, force_terminal=True, width=80, height=24)
    watch(console, FakeReader(*happens), frame, every_s=0.01)
    return page.getvalue(), said


def test_the_last_values_stay_on_the_terminal() -> None:
    """The other screen is left before they are printed."""
    said, _ = watched(None, None, None)
    assert said.index(ALTERNATE) < said.index(BACK) < said.rindex("picture")
    assert said.count(BACK) == 1


def test_a_reading_that_fails_leaves_the_values() -> None:
    """It says since when, until there is an answer again."""
    _, lost = watched(None, Unavailable("refused"), None, None)
    since = "These values are from 03:10:00; since then no answer: refused"
    assert (lost[0], lost[1], lost[-1]) == ("", since, "")


@pytest.mark.parametrize("error", [Unavailable("refused"), KeyboardInterrupt()])
def test_a_first_reading_that_fails_is_an_error(error: BaseException) -> None:
    """There is nothing to show; the command's own way out takes over."""
    with pytest.raises(type(error)):
        watched(error)


def test_another_size_of_the_window_shows_at_once() -> None:
    """Without another reading."""
    page, sizes = io.StringIO(), []
    console = Console(file=page, force_terminal=True, width=80, height=24)

    def frame(console: Console, _top: Top, _lost: str) -> RenderableType:
        sizes.append(console.width)
        console.size = ConsoleDimensions(100, 30)
        return Text("picture")

    watch(console, FakeReader(None), frame, every_s=0.01)
    assert sizes == [80, 100, 100]
