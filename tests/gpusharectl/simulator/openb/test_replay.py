"""The public trace's own format, replayed by our decisions; a trace made up for it."""

import csv
import io
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from gpushare.domain.policies import Choice
from gpusharectl.commands import main
from gpusharectl.simulator.openb.replay import replays
from gpusharectl.simulator.openb.trace import NODE_FILE

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"made-up-{number},16000,65536,2,{model}\n"
    for number, model in enumerate(("P100", "T4", "T4"))
)
SHAPES = (
    (2000, 1, 500, ""),
    (4000, 1, 250, "T4"),
    (8000, 2, 1000, ""),
    (1000, 0, 0, ""),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        f"pod-{number},{cpu},1024,{cards},{milli},{spec}\n"
        for number, (cpu, cards, milli, spec) in enumerate(SHAPES * 3)
    ]
    heading = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    (tmp_path / NODE_FILE).write_text(NODES)
    for name in ("default", "other"):
        path = tmp_path / f"openb_pod_list_{name}.csv"
        path.write_text(heading + "".join(rows))
    return tmp_path


def ran(folder: Path | None, *words: str) -> Result:
    where = [] if folder is None else ["--trace-dir", str(folder)]
    return CliRunner().invoke(main, ["simulate", "--trace", "openb", *where, *words])


@pytest.mark.parametrize(
    ("seeds", "told", "compare"),
    [
        ("3", "; seed 3.", []),
        ("5,4", "mean of seeds 5, 4.", []),
        ("1-3", "mean of seeds 1 to 3.", ["--compare", "first-fit,frag"]),
    ],
)
def test_the_papers_figure(
    folder: Path, seeds: str, told: str, compare: list[str]
) -> None:
    done = ran(folder, "--seeds", seeds, *compare)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith('openb, list "default", at load 100 %: first-fit ')
    assert told in done.stdout
    assert ("Next: --compare" in done.stdout) != bool(compare)


@pytest.mark.parametrize("wrong", ["typo", "empty"])
def test_all_lists_are_read_before_the_first_is_played(
    folder: Path, wrong: str
) -> None:
    """What is wrong with the last does not cost what came of the others."""
    path = folder / "openb_pod_list_empty.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n")
    began: list[str] = []
    lists = ("default", wrong)
    with pytest.raises(ValueError, match=f"{wrong}.csv: "):
        list(replays(folder, lists, (42,), [Choice()], began.append))  # type: ignore[arg-type]
    assert began == []
    done = ran(folder, "--list", wrong)
    assert done.exit_code == 1
    assert f"{wrong}.csv: " in done.stderr


def test_as_data(folder: Path) -> None:
    """Every list, every policy, every seed; a card's milli is never given out twice."""
    done = ran(folder, "--list", "all", "--seeds", "1,2", "-o", "json")
    found = orjson.loads(done.stdout)["replays"]
    assert [(one["list"], one["policy"]) for one in found] == [
        ("default", "first-fit"),
        ("other", "first-fit"),
    ]
    for one in found:
        assert one["seeds"] == [1, 2]
        assert len(one["placed"]) == len(one["by_seed"]["100"]) == 2
        assert all(share <= 100 for _, share in one["curve"])
    assert found[0]["curve"] == found[1]["curve"], "the same pods, the same seeds"


def test_as_lines_and_as_a_picture(folder: Path) -> None:
    picture = folder / "a.svg"
    done = ran(folder, "-o", "csv", "--plot", str(picture))
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {line["policy"] for line in lines} == {"first-fit"}
    assert float(lines[-1]["allotted"]) <= 100
    assert "openb, default" in picture.read_text()
