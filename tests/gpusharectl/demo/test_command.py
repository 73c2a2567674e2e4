"""``gpusharectl demo``, run as a user runs it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from gpushare.kube.cluster import Kind, PodTarget
from gpusharectl.demo import story as story_module
from gpusharectl.demo.cluster import CannotStartError, DemoCluster
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.story import Story
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes

TOTALS = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."
ONE_CARD = f"{TOTALS[:-1]} on one card."
RESULTS = [
    "91 units, 23296 MiB, of 24259 MiB are in use",
    "it still does not fit, and waits",
    "with the limit put back to 1 it runs",
    "the first card with room: 4 and 20 units on card 0, 20 on card 1",
    "2 GiB and 3 GiB use both cards",
    "12 units were free, but no card had 10; 8 and 8 share one card",
]
WITHIN_S = 120.0


def children_of(mark: Path, of: str = "") -> list[int]:
    """Processes that have this folder as their place for temporary files.

    Only those with ``of`` in their command line.
    """
    wanted = f"TMPDIR={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            named = of.encode() in (process / "cmdline").read_bytes()
            if named and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files, with a name short enough for sockets below it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)
        wait_until(lambda: not children_of(Path(path)), "end of the children")


def _as_in_a_terminal() -> None:
    """Undo what a shell's background and ``nohup`` have their programs ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def demo(
    folder: Path, *args: str, cwd: Path | None = None, **more: str
) -> Iterator[subprocess.Popen[str]]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "KUBECONFIG")}
    with subprocess.Popen(
        [sys.executable, "-m", "gpusharectl", "demo", *args],
        env=kept
        | {"TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
        # Should a library abort the process, its output says which thread did what.
        | {"PYTHONFAULTHANDLER": "1"}
        | more,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        preexec_fn=_as_in_a_terminal,  # noqa: PLW1509
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(scope="module")
def story() -> str:
    """What the demo tells; it must end well and leave nothing behind."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        folder = Path(path)
        with demo(folder) as child:
            told, _ = child.communicate(timeout=WITHIN_S)
        assert child.returncode == 0, told
        wait_until(lambda: not children_of(folder), "end of the children")
        assert list(folder.iterdir()) == []
    return told


def test_every_scene_has_the_expected_result(story: str) -> None:
    told = [
        line.strip().removeprefix("As expected: ").removesuffix(".")
        for line in story.splitlines()
        if "As expected: " in line
    ]
    assert told == RESULTS
    assert "All 4 scenes had the expected result" in story
    lines = [line.strip() for line in story.splitlines()]
    # As ``kubectl describe`` has them.
    assert {TOTALS, ONE_CARD} <= set(lines)
    # A pipe gets no colours, and no spaces at the end.
    assert "\x1b" not in story
    assert [line for line in story.splitlines() if line != line.rstrip()] == []
    # What containers see, as seed 001 does with ``kubectl exec``.
    first = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
    second = "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a"
    assert [line.split()[1:] for line in lines if line.startswith("inside")] == [
        ["cuda-1", "1024", "MiB", first],
        ["cuda-2", "5120", "MiB", first],
        ["cuda-3", "5120", "MiB", second],
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_story_may_be_broken_off(place: Path, number: signal.Signals) -> None:
    with demo(place) as child:
        begun = "device plugin"
        wait_until(lambda: children_of(place, "deviceplugin"), begun, WITHIN_S)
        child.send_signal(number)
        said, _ = child.communicate(timeout=WITHIN_S)
    assert child.returncode != 0
    assert "Traceback" not in said
    assert list(place.iterdir()) == []


def held(child: subprocess.Popen[str]) -> tuple[Path, str]:
    """Read until the invitation is whole; give the kubeconfig that it names."""
    assert child.stdout is not None
    told = ""
    for line in child.stdout:
        told += line
        if "Ctrl-C" in line:
            break
    paths = [line.partition("KUBECONFIG=")[2].strip() for line in told.splitlines()]
    return Path(next(filter(None, paths), "/nowhere")), told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_hold_stays_until_it_is_told_to_stop(
    place: Path, number: signal.Signals
) -> None:
    with demo(place, "--hold") as child:
        kubeconfig, told = held(child)
        assert kubeconfig.is_file(), told
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        assert (kubeconfig.parent / "pod.yaml").is_file()
        assert f"kubectl create -f {kubeconfig.parent}/pod.yaml" in told
        page = re.search(r"http://127\.0\.0\.1:\d+/ui\b", told)
        assert page, told
        with urllib.request.urlopen(page[0], timeout=30) as answer:
            assert b"<title>GPU cards</title>" in answer.read()
        assert len(children_of(place, "deviceplugin")) == 2
        assert len(children_of(place, "gunicorn")) >= 1
        child.send_signal(number)
        said, _ = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 0, said
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL], ids=["hup", "kill"])
def test_no_child_outlives_a_demo_that_is_killed(
    place: Path, number: signal.Signals
) -> None:
    with demo(place, "--hold") as child:
        begun = "both device plugins"
        wait_until(
            lambda: children_of(place, "deviceplugin"),
            begun,
            WITHIN_S,
            accept=lambda found: len(found) == 2,
        )
        child.send_signal(number)
        child.communicate(timeout=WITHIN_S)
    wait_until(lambda: not children_of(place), "end of the children")


@pytest.mark.parametrize(
    ("of", "who"),
    [("gunicorn", "the extender"), ("deviceplugin", "the device plugin of node-")],
)
def test_hold_ends_when_a_child_does(place: Path, of: str, who: str) -> None:
    with demo(place, "--hold") as child:
        held(child)
        for pid in children_of(place, of):
            os.kill(pid, signal.SIGKILL)
        said, _ = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 1, said
    assert f"Stopped: {who}" in said
    assert " ended:\n" in said
    assert "Traceback" not in said
    assert list(place.iterdir()) == []


def test_a_part_that_ends_by_an_error_ends_the_demo(tmp_path: Path) -> None:
    """A demo without its scheduler would look healthy, and place nothing."""

    def fail(_: Event) -> None:
        raise KeyError("allocatable")

    demo = DemoCluster(tmp_path)
    demo._thread("scheduler", fail)
    demo._join("scheduler")
    with pytest.raises(CannotStartError, match="scheduler ended: KeyError"):
        demo.check_children()
    demo.close()


@pytest.mark.parametrize("length", [1, 30, 60])
def test_sockets_are_kept_short(
    place: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    usual = place / ("x" * length)
    usual.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    with story_module._folder() as folder:
        sockets = Path(folder) / "node-1" / "device-plugins"
        assert len(bytes(sockets / "baidu.com-vcuda-memory.sock")) <= 107
        assert (Path(folder).parent == usual) == (length == 1)
    assert not Path(folder).exists()


ARGS = pytest.mark.parametrize("args", [[], ["--hold"]], ids=["tell", "hold"])
# With --hold two of them start, and either may be the first to end.
PLUGIN = r"the device plugin of node-[12] did not come up:\nno cards today"
EXTENDER = r"the extender did not come up:(.|\n)*--no-such-option"


@ARGS
@pytest.mark.parametrize(
    ("more", "words"),
    [({}, PLUGIN), ({"GUNICORN_CMD_ARGS": "--no-such-option"}, EXTENDER)],
    ids=["plugin", "extender"],
)
def test_a_child_that_cannot_start_is_a_sentence(
    place: Path, tmp_path: Path, args: list[str], more: dict[str, str], words: str
) -> None:
    if not more:
        (tmp_path / "deviceplugin.py").write_text("raise SystemExit('no cards today')")
    with demo(place, *args, cwd=tmp_path, **more) as child:
        said, _ = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 1
    assert re.search(words, said), said
    assert "Traceback" not in said
    assert list(place.iterdir()) == []


def test_the_newest_warning_is_the_newest() -> None:
    """Events are listed by name, and their names end in random letters."""
    uids = iter(["zzzzz", "aaaaa", "mmmmm"])
    cluster = Embedded(new_uid=lambda: next(uids))
    for message in ("first", "second", "third"):
        cluster.event(
            PodTarget("default", "app", "u"),
            kind="Warning",
            reason="FailedScheduling",
            message=message,
        )
    assert len(cluster.list_page(Kind.EVENTS, limit=0).items) == 3
    stage = Story(cast("Any", SimpleNamespace(cluster=cluster)), Console())
    assert stage.message("app") == "third"
