"""``simulate`` as a user runs it: files and complaints."""

import shlex
import sys
from pathlib import Path

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from gpusharectl.commands import main
from tests.gpusharectl.terminal import Terminal

SCENARIO = """
nodes: [{name: node-1, cards: 1x24259MiB}]
pods:
- {name: app-1, units: 50}
- {name: app-2, units: 40}
- {name: app-3, units: 10, at: 1m}
"""


def ran(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "office.yaml"
    path.write_text(SCENARIO)
    return path


def test_a_scenario(tmp_path: Path) -> None:
    """The next step can be pasted."""
    path = tmp_path / "my office; rm.yaml"
    path.write_text(SCENARIO)
    done = ran(path)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Placed: 2 of 3 pods.\n")
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[1:] == [
        *("gpusharectl", "simulate", str(path), "--compare", "first-fit,frag")
    ]


def test_into_a_pipe_nothing_is_wrapped_or_padded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    lines = ran(file, "--compare", "first-fit,frag").output.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert any(line.startswith("Not simulated: ") and len(line) > 80 for line in lines)


def test_two_policies_side_by_side_and_one_as_lines(file: Path) -> None:
    done = ran(file, "--compare", "first-fit, frag", "-o", "yaml", "--room", "4")
    runs = yaml.safe_load(done.stdout)["runs"]
    assert [run["policy"] for run in runs] == ["first-fit", "frag"]
    assert [run["room"][0]["number"] for run in runs] == [1, 1]
    lines = ran(file, "-o", "csv", "--policy", "spread").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["policy", *["spread"] * 5]


def test_it_says_where_it_came_out_otherwise(file: Path) -> None:
    file.write_text(f"{SCENARIO}expect: {{placed: 3}}\n")
    done = ran(file)
    assert done.exit_code == 3
    assert "pods placed: 2; expected: 3" in done.stdout
    assert ran(file, "--policy", "spread").exit_code == 0, "asked of another policy"


MORE = ["--live", "--more"]
WRONG = {
    "no file": (["x.yaml"], 1, "x.yaml: cannot be read (No such file"),
    "nothing": ([], 2, "give one of the two"),
    "two": (["f", "--live"], 2, "give one of the two"),
    "policy": (["f", "--compare", "best"], 2, 'no policy "best"; known are first-fit'),
    "twice": (["f", "--compare", "frag,frag"], 2, "names a policy twice"),
    "no links": (["f", "--compare", "frag/no-links"], 1, "no node has links between"),
    "links": (["f", "--compare", "frag/links"], 2, '"frag/links": only /no-links'),
    "no moves": (["f", "--compare", "frag/no-moves"], 1, "nobody moves pods here"),
    "neither": (
        ["f", "--compare", "frag/no-links/x"],
        2,
        '"frag/no-links/x": only /no',
    ),
    "comma": (["f", "--compare", ","], 2, '"," names no policy; known are first-fit'),
    "endless": (["f", "--room", "9" * 5000], 2, "it must be a whole number from 0 to"),
    "endless cpu": (["f", "--room", "units=1,cpu=1e999"], 2, 'cpu is "1e999"; give'),
    "endless more": ([*MORE, "a/b=" + "9" * 5000], 2, "does not name pods; giv"),
    "both": (["f", "--compare", "frag", "--policy", "frag"], 2, "give one of them"),
    "room": (["f", "--room", "lots"], 2, '"lots" is not the size of a pod; give 20'),
    "room twice": (["f", "--room", "units=1,units=2"], 2, "has units twice"),
    "room policy": (["f", "--room", "policy=x"], 2, 'policy is "x"; known are '),
    "quantity": (["f", "--room", "units=1,cpu=x"], 2, 'cpu is "x"'),
    "cards": (["f", "--room", "cards=1,cores=5"], 2, "leave the cores out"),
    "model": (["f", "--room", "units=1,model=a*b"], 2, "Invalid vcuda request: baidu"),
    "odd cores": (["f", "--room", "units=3,cores=150"], 2, "cores is 150; 1 to 99 are"),
    "no room": (["f", "--room", "0"], 2, '"0" asks for nothing; give 20, or units=20'),
    "no cards": (["f", "--room", "cards=0"], 2, '"cards=0" asks for nothing; give 20'),
    "drain": (["f", "--drain", "n"], 2, "--drain needs --live"),
    "more": ([*MORE, "app"], 2, '"app" does not name pods; give NAMESPACE/NAME'),
    "kind": ([*MORE, "x/a/b=1"], 2, "a kind is one of deployment"),
    "add": (["--live", "--add", "n=x"], 2, '"n=x" is not NODE or NODE=N'),
}


@pytest.mark.parametrize(("words", "code", "told"), WRONG.values(), ids=WRONG)
def test_what_is_not_understood(
    file: Path, words: list[str], code: int, told: str
) -> None:
    done = ran(*(file if word == "f" else word for word in words))
    assert done.exit_code == code, done.output
    assert told in " ".join(done.stderr.split())


def test_words_for_the_shell() -> None:
    shell = ShellComplete(main, {}, "gpusharectl", "")
    before = ["simulate", "--compare"]
    found = shell.get_completions(before, "first-fit,")
    assert "first-fit,frag" in [one.value for one in found]
    assert "first-fit,first-fit" not in [one.value for one in found]


@pytest.mark.processes
def test_a_long_run_shows_how_far_it_is(tmp_path: Path) -> None:
    """On a terminal alone; a pipe gets the answer and nothing else."""
    path = tmp_path / "long.yaml"
    path.write_text(
        "nodes: [{name: n, count: 9, cards: 8x80GiB}]\n"
        "pods: [{name: p, count: 600, units: 20}]\n"
    )
    words = ["-m", "gpusharectl", "simulate", str(path)]
    terminal = Terminal([sys.executable, *words])
    terminal.read_until("of 600")
    terminal.read_until("Placed: 600 of 600 pods.")
    assert terminal.end() == 0
    assert "of 600 " not in ran(path).stderr


def test_the_readmes_scenario_can_be_played() -> None:
    """Whoever pastes the line into a checkout gets an answer."""
    root = Path(__file__).parents[3]
    lines = (root / "README.md").read_text(encoding="utf-8").splitlines()
    start = ".venv/bin/gpusharectl simulate "
    commands = [line.split() for line in lines if line.startswith(start)]
    files = [words[2] for words in commands if words[2].endswith(".yaml")]
    assert files
    assert all(ran(root / name).exit_code == 0 for name in files)
