"""Commands without their Bitfusion calls (M7 to M10), and what the calls ask."""

import shlex
from collections.abc import Sequence

import pytest

from tests.webhook.bitfusion_pods import ALL, HALF, translated
from webhook.bitfusion.command_line import BitfusionRun, ContainerCommand, remove_calls

BASH = "/bin/bash"
CALL = "bitfusion run -n 1 -p 0.5"


def rewritten(command: Sequence[str], args: Sequence[str] = ()) -> ContainerCommand:
    return remove_calls({"command": list(command), "args": list(args)}, BASH)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["/opt/my-app"],
        ["python", "a.py", "--name=a b"],
        ["/bin/bash", "-c", "python a.py"],
        ["python", "-c", "import os; os.system('bitfusion run -n 1 -- x')"],
        ["my-bitfusion", "run", "-n", "1", "--", "x"],
        ["sh", "-c", "cat /etc/bitfusion/run; echo bitfusion"],
    ],
)
def test_left_alone(command: list[str]) -> None:
    assert rewritten(command) == ContainerCommand(tuple(command), ())


@pytest.mark.parametrize(
    "line", ["python a.py", " python", "a;b", "$HOME/run.sh", "./*.sh", "a --x='1' |b"]
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
    vector = shlex.split(words)
    for at in range(1, len(vector) + 1):
        found = rewritten(vector[:at], vector[at:])
        assert [*found.command, *found.args] == rest
        assert found.command


def test_a_call_in_args() -> None:
    """The image's own entry point still gets what is left."""
    found = rewritten([], shlex.split(f"{CALL} -- python a.py"))
    assert (found.command, found.args) == ((), ("python", "a.py"))
    shell = rewritten([BASH, "-c"], [f"{CALL} -- python a.py"])
    assert (shell.command, shell.args) == ((BASH, "-c"), ("python a.py",))


@pytest.mark.parametrize(
    "options", ["--odd a", "-n 1", "-n 1 --", "-n $(COUNT) -- a", "-n 1 'python a.py"]
)
def test_unclear_calls_stay(options: str) -> None:
    """Rather than a program that is cut in the wrong place."""
    line = f"bitfusion run {options}"
    found = rewritten(["/bin/sh", "-c", line])
    assert found.command == ("/bin/sh", "-c", line)
    assert any('write "--"' in text for text in found.warnings)


def test_what_the_options_were() -> None:
    line = (
        "bitfusion run -n 2 -p 0.25 --filter 'device.name=A100 PCIe' -- a; "
        "bitfusion run -m 8000 --filter=server.addr=10.0.0.1 -- b"
    )
    assert rewritten([line]).runs == (
        BitfusionRun("2", "0.25", None, ["device.name=A100 PCIe"]),
        BitfusionRun(None, None, "8000", ["server.addr=10.0.0.1"]),
    )


CORE, MEMORY = "baidu.com/vcuda-core", "baidu.com/vcuda-memory"


def asked(line: str) -> tuple[str, str]:
    found = translated({"annotations": ALL, "containers": [{"command": [line]}]})
    assert found.denials == ()
    limits = found.pod["spec"]["containers"][0]["resources"]["limits"]
    return limits[CORE], limits[MEMORY]


@pytest.mark.parametrize(
    ("options", "cores", "units"),
    [
        ("-n 1 -p 0.5", "50", "29"),
        ("-n 1 -p 1.0", "100", "59"),
        ("-p .25", "25", "14"),
        ("-n 2", "200", "118"),
        ("", "100", "59"),
        ("-p 0.333", "33", "19"),
        ("-p 1e-9999999", "1", "1"),
        ("-m 8000", "50", "30"),
        ("-m 8Gi", "54", "32"),
        ("-m 8000 -p 0.1", "50", "30"),
        ("-p 0.2 -- a && bitfusion run -p 0.5", "50", "29"),
        ("-m 1000 -- a && bitfusion run -m 8000", "50", "30"),
        ("-m 1000 -- a && bitfusion run -p 0.5", "50", "29"),
        ("-m 12000 -- a && bitfusion run -p 0.5 -- b; bitfusion run", "100", "59"),
        ("-n 2 -- a && bitfusion run -p 0.5 -- b; bitfusion run -m 8Gi", "200", "118"),
    ],
)
def test_parts(options: str, cores: str, units: str) -> None:
    """A fraction becomes a percentage, rounded down; a plain number of -m is MB.

    Of several calls the most counts: one ends before the next begins.
    """
    assert asked(f"bitfusion run {options} -- python a.py") == (cores, units)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ("-n 0", "gpuNum.Value() Error (spec.containers[0].command, bitfusion run -n"),
        ("-n $N", "gpuNum.Value() Error "),
        ("-p 0", "Invalid bitfusion.io/gpu-percent quantity: 0 "),
        ("-p 50", "a number above 0 and up to 1; write 0.5 for half of it"),
        ("-p nan", "quantity: nan "),
        ("-p 1e9999999", "quantity: 1e9999999 "),
        ("-m 0", "Memory value Error "),
        ("-m 99999", "Memory value Error "),
        ("-n 2 -p 0.5", "2 cards with 50 percent of each are not possible"),
        ("-n 2 -p 0.5 -- a; bitfusion run -n 4", "2 cards with 50 percent of each"),
    ],
)
def test_denials(calls: str, says: str) -> None:
    line = f"bitfusion run {calls} -- python a.py"
    found = translated({"annotations": ALL, "containers": [{"command": [line]}]})
    (told,) = found.denials
    assert says in told


def test_of_two_kinds_without_a_cards_size() -> None:
    """Nobody could tell which is more; memory alone needs no such size."""
    line = "bitfusion run -m 8000 -- a; bitfusion run -p 0.5 -- b"
    short = {"annotations": ALL, "containers": [{"command": [line]}]}
    (told,) = translated(short, total_mb="").denials
    assert told.startswith("Invalid bitfusion.io/gpu-percent quantity: 50 ")


MANY = 100_000


@pytest.mark.parametrize(
    "line",
    [
        "bitfusion run " * MANY,
        "bitfusion run -n 1 -- a; " * MANY,
        "{" * 10 * MANY,
        "/" * 10 * MANY,
        "/bitfusion" * MANY,
        "bitfusion run " + "-n 1 " * MANY,
        "bitfusion run --odd " + "a " * MANY + "--",
        "bitfusion run -n 1 -- '" + "a " * MANY + "'",
        "bitfusion run -n 1 -- " + "a" * MANY + "'",
        "bitfusion run " + '"' * MANY,
        "bitfusion run " + "\\" * MANY,
    ],
    ids=lambda line: str(line)[:30].strip(),
)
def test_a_long_line(line: str) -> None:
    found = remove_calls({"command": ["/bin/sh", "-c", line]}, "/bin/bash")
    assert found.command[:2] == ("/bin/sh", "-c")
    assert len(found.command[2]) <= len(line) + len("/bin/bash -c ")


def test_many_words() -> None:
    vector = ("bitfusion", "run", *["-n"] * MANY)
    assert rewritten(vector).command == vector


def test_a_long_filter() -> None:
    text = " ".join(f"server.hostname=n{number}" for number in range(20_000))
    annotations = {**ALL, "bitfusion-client/filter": text}
    found = translated(
        {"annotations": annotations, "containers": [{"resources": HALF}]}
    )
    assert found.warnings == ("Filters after the first 64 words are left out",)
