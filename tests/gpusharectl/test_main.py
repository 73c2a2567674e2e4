"""The entry point: Ctrl-C at any time, and standard output that cannot be written."""

import errno
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpusharectl.commands import LazyCommand, TwoNames, main
from tests.gpusharectl.terminal import Terminal, kubeconfig_for

FULL = {
    "table": (1, "table"),
    "json": (1, "json"),
    "a long answer": (3000, "json"),
    "csv": (1, "csv"),
}


@pytest.mark.processes
@pytest.mark.parametrize(("pods", "output"), FULL.values(), ids=FULL)
def test_a_disk_that_is_full_is_told_in_a_sentence(
    tmp_path: Path, pods: int, output: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"""
nodes: [{{name: n, cards: 1x24GiB}}]
pods: [{{name: p, count: {pods}, cpu: 1m}}]
""")
    words = ["-m", "gpusharectl", "simulate", str(path), "-o", output]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "Error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("name", [None, "a file"])
def test_another_disk_that_is_full_is_not_standard_output(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    @click.command()
    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    monkeypatch.setattr(sys, "argv", ["gpusharectl", "fill"])
    with pytest.raises(OSError, match="No space left on device"):
        TwoNames("gpusharectl", commands=[fill]).run()


@pytest.mark.processes
def test_ctrl_c_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    """The exit code is that of every other moment."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = kubeconfig_for(server, tmp_path / "kubeconfig")
        words = ["-m", "gpusharectl", "inspect", "--kubeconfig", str(place)]
        found = Terminal([sys.executable, *words])
        with silent.accept()[0]:
            found.process.send_signal(signal.SIGINT)
            assert found.end() == 130
        found.close()
    assert found.said.strip() == ""


@pytest.mark.parametrize("name", main.commands)
def test_the_list_of_commands_is_right(name: str) -> None:
    """Each is there under its name, and hidden in the list if it is hidden itself."""
    listed = main.commands[name]
    assert isinstance(listed, LazyCommand)
    found = listed.loaded()
    assert (found.name, found.hidden) == (name, listed.hidden)
