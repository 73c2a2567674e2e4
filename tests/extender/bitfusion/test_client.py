"""The stand-in for Bitfusion's client, run as scripts in containers run it."""

import subprocess
from pathlib import Path

import pytest

from extender.bitfusion.client import SCRIPT

SHELLS = [name for name in ("/bin/sh", "/bin/bash", "/bin/dash") if Path(name).exists()]
SMI = '#!/bin/sh\necho smi "$@"\n'


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The script beside an nvidia-smi, under each shell that is here."""
    for name, text in (("bitfusion", SCRIPT), ("nvidia-smi", SMI)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o555)
    wrapper = tmp_path / "call"
    wrapper.write_text(f'#!/bin/sh\nexec {request.param} {tmp_path}/bitfusion "$@"\n')
    wrapper.chmod(0o555)
    return wrapper


def call(
    client: Path, *words: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    path = f"{client.parent}:/usr/bin:/bin"
    return subprocess.run(
        [str(client), *words],
        input=stdin,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "options",
    [
        ["-n", "1", "-p", "0.5", "--"],
        ["-n", "1", "-p", "0.5"],
        ["-n1", "-m=8000"],
        ["--num_gpus=1", "--partial", "0.5", "--filter", "a=b"],
        ["-l", "10.0.0.1", "-s", "/etc/servers.conf", "--"],
        ["--new", "thing", "-q", "--"],
        [],
    ],
)
def test_run_runs_the_rest(client: Path, options: list[str]) -> None:
    """Word by word, blanks and all."""
    done = call(client, "run", *options, "printf", "<%s>", "a b", "--", "-n", "")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<a b><--><-n><>"
    assert done.stderr == ""


def test_run_becomes_the_program(client: Path) -> None:
    """Its exit code, its input and its signals are the program's own."""
    assert call(client, "run", "-n", "1", "--", "sh", "-c", "exit 7").returncode == 7
    assert call(client, "run", "-n", "1", "cat", stdin="in").stdout == "in"
    killed = call(client, "run", "--", "sh", "-c", "kill -TERM $$")
    assert killed.returncode == -15


def test_a_program_in_one_line(client: Path) -> None:
    done = call(client, "run", "-n", "1", "echo a; echo b")
    assert done.stdout == "a\nb\n"


def test_a_program_whose_name_has_blanks(client: Path) -> None:
    script = client.parent / "my app"
    script.write_text('#!/bin/sh\necho "$1"\n')
    script.chmod(0o555)
    assert call(client, "run", "-n", "1", "--", str(script), "x y").stdout == "x y\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "no program was given"),
        (["run", "-n"], "no program was given"),
        (["run", "-n", "1", "--"], "no program was given"),
        (["run", "--new", "true"], "unknown option --new; write -- between"),
        (["token"], "there is no token here: cards are local"),
    ],
)
def test_mistakes(client: Path, words: list[str], says: str) -> None:
    done = call(client, *words)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "prints"),
    [
        (["smi"], "smi\n"),
        (["smi", "-q"], "smi -q\n"),
        (["list_gpus"], "smi -L\n"),
        (["health"], "healthy: cards are local, there is no server\n"),
        (["version"], "stand-in for the Bitfusion client, cards are local\n"),
        (["request_gpus", "-n", "1"], ""),
        (["client", "echo", "x"], "x\n"),
        (["release_gpus"], ""),
        ([], ""),
    ],
)
def test_the_other_words(client: Path, words: list[str], prints: str) -> None:
    done = call(client, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == prints


def test_a_program_that_is_not_there(client: Path) -> None:
    assert call(client, "run", "-n", "1", "--", "no-such-program").returncode == 127


def test_it_is_small_and_plain() -> None:
    """It lies in an annotation of each such pod, of which there are 256 KiB in all."""
    assert SCRIPT.isascii()
    assert SCRIPT.startswith("#!/bin/sh\n")
    assert len(SCRIPT) < 4096
