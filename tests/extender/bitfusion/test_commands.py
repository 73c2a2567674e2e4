"""Commands as they must be where nobody prefixes them: M7 to M10, line by line."""

import shlex
from collections.abc import Sequence

import pytest

from extender.bitfusion.command_line import Command, command_of

BASH = "/bin/bash"
CALL = "bitfusion run -n 1 -p 0.5"


def rewritten(command: Sequence[str], args: Sequence[str] = ()) -> Command:
    return command_of({"command": list(command), "args": list(args)}, BASH)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["python"],
        ["/opt/my-app"],
        ["python", "a.py", "--name=a b"],
        ["/bin/bash", "-c", "python a.py"],
        ["sh", "-c", "echo bitfusion"],
        ["python", "-c", "import os; os.system('bitfusion run -n 1 -- x')"],
        ["my-bitfusion", "run", "-n", "1", "--", "x"],
        ["sh", "-c", "cat /etc/bitfusion/run"],
    ],
)
def test_left_alone(command: list[str]) -> None:
    """What can be run as it is, and words that only look like a call."""
    found = rewritten(command)
    assert list(found.command) == command
    assert found.runs == ()
    assert found.warnings == ()


@pytest.mark.parametrize(
    "line",
    [
        "python a.py",
        " python",
        "python\ta.py",
        "a;b",
        "$HOME/run.sh",
        "a&&b",
        "./*.sh",
        "python a.py --x='1 2' | tee log",
    ],
)
def test_one_line_goes_to_a_shell(line: str) -> None:
    assert rewritten([line]).command == (BASH, "-c", line)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        (f"{CALL} -- python a.py", "python a.py"),
        (f"{CALL} python a.py", "python a.py"),
        (f"{CALL}  --  python  a.py ", "python  a.py "),
        (f"cd /x && {CALL} -- python a.py", "cd /x && python a.py"),
        (f"FOO=1 {CALL} -- python a.py", "FOO=1 python a.py"),
        (f"sudo {CALL} -- python a.py", "sudo python a.py"),
        (f"({CALL} -- python a.py); echo done", "(python a.py); echo done"),
        (f"/bitfusion/x_amd64.deb/usr/bin/{CALL} -- python a.py", "python a.py"),
        (f"{CALL} -- a && {CALL} -- b", "a && b"),
        (f"{CALL} -- a\n{CALL} -- b\n", "a\nb\n"),
        ("bitfusion run -n 1 \\\n  -p 0.5 \\\n  -- python a.py", "python a.py"),
        ("bitfusion run -n1 -p=0.5 python a.py", "python a.py"),
        ("bitfusion run --num_gpus=1 --partial 0.5 python a.py", "python a.py"),
        ("bitfusion run --num-gpus 1 -m 8000 python a.py", "python a.py"),
        ("bitfusion run -s '10.0.0.1:56001' -n 1 python a.py", "python a.py"),
        ('bitfusion run --server_list "a b" -n 1 -- python a.py', "python a.py"),
        ("bitfusion run --unknown 3 -n 1 -- python a.py", "python a.py"),
        ("bitfusion run -n 1 -- python a.py -- -p 3", "python a.py -- -p 3"),
        ("bitfusion run -n $N -p ${P} -- python $A", "python $A"),
        (
            'bitfusion run -n 1 "python a.py \\\n--x"',
            f'{BASH} -c "python a.py \\\n--x"',
        ),
        ("bitfusion run -n 1 './my app' --x", f"{BASH} -c './my app' --x"),
    ],
)
def test_a_call_in_a_line(line: str, rest: str) -> None:
    """Whatever stands around it stays, to the blank."""
    found = rewritten(["/bin/sh", "-c", line])
    assert found.command == ("/bin/sh", "-c", rest)
    assert found.warnings == ()
    alone = rewritten([line])
    assert alone.command in ((BASH, "-c", rest), (rest,))


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (f"{CALL} -- python a.py", ["python", "a.py"]),
        (f"{CALL} python a.py", ["python", "a.py"]),
        (f"/any/path/{CALL} --filter a=b -- python a.py", ["python", "a.py"]),
        (f"sudo -E {CALL} -- python a.py", ["sudo", "-E", "python", "a.py"]),
        (f"{CALL} 'python a.py'", [BASH, "-c", "python a.py"]),
    ],
)
def test_a_call_in_words(words: str, rest: list[str]) -> None:
    """Wherever the border between command and args runs."""
    vector = shlex.split(words)
    for at in range(1, len(vector) + 1):
        found = rewritten(vector[:at], vector[at:])
        assert [*found.command, *found.args] == rest
        assert found.command


def test_a_call_in_args() -> None:
    """The image's own entry point still gets what is left."""
    found = rewritten([], shlex.split(f"{CALL} -- python a.py"))
    assert found.command == ()
    assert found.args == ("python", "a.py")
    shell = rewritten([BASH, "-c"], [f"{CALL} -- python a.py"])
    assert (shell.command, shell.args) == ((BASH, "-c"), ("python a.py",))


@pytest.mark.parametrize(
    "line",
    [
        "bitfusion run --unknown python a.py",
        "bitfusion run -n 1",
        "bitfusion run -n 1 --",
        "bitfusion run -n $(COUNT) -- python a.py",
        "bitfusion run -n 1 'python a.py",
    ],
)
def test_unclear_calls_stay(line: str) -> None:
    """Rather than a program that is cut in the wrong place."""
    found = rewritten(["/bin/sh", "-c", line])
    assert found.command == ("/bin/sh", "-c", line)
    assert any('write "--"' in text for text in found.warnings)


def test_what_the_options_were() -> None:
    """Each in the words in which it stood."""
    line = (
        "bitfusion run -n 2 -p 0.25 --filter 'device.name=A100 PCIe' -- a; "
        "bitfusion run -m 8000 --filter=server.addr=10.0.0.1 -- b"
    )
    first, second = rewritten([line]).runs
    assert (first.cards, first.part, first.memory) == ("2", "0.25", None)
    assert first.filters == ["device.name=A100 PCIe"]
    assert (second.cards, second.memory) == (None, "8000")
    assert second.filters == ["server.addr=10.0.0.1"]
