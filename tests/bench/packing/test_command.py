"""The command line of the replay."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from bench.packing.command import deviation, mean, packing
from tests.bench.packing.building import CASES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(packing, [str(argument) for argument in arguments])


def test_results_are_written_and_shown_and_others_kept(tmp_path: Path) -> None:
    output = tmp_path / "packing.json"
    found: dict[str, Any] = {
        "lists": {"small": {"policies": {}}, "other": {}},
        "churn": {"list": "x"},
    }
    output.write_text(json.dumps(found))
    options = ("--trace-dir", CASES, "--seeds", 1, "--no-churn", "--output", output)
    ran = run(*options, "--lists", "small", "--policies", "bestfit", "--add")
    assert ran.exit_code == 0, ran.output
    assert "ceiling" in ran.output
    found = json.loads(output.read_text())
    assert (set(found["lists"]), found["churn"]) == ({"small", "other"}, {"list": "x"})
    entry = found["lists"]["small"]
    assert (entry["nodes"], entry["cards"], entry["pods"]) == (6, 13, 10)
    assert entry["published"] == {}
    assert 0 < entry["limits"]["ceiling"] <= entry["limits"]["bound"] <= 100
    best = entry["policies"]["bestfit"]
    assert set(best["seeds"]) == {"42"}
    assert all(0 < share <= 100 for _, share in best["curve"])
    assert {"at", "machine", "python"} <= set(found)


def test_a_mean_over_the_seeds_is_unknown_where_one_is() -> None:
    assert mean([95.0, 96.0]) == 95.5
    assert mean([95.0, None]) is None
    assert deviation([95.0, 96.0, 97.0]) == 1.0
    assert deviation([95.0]) is None
