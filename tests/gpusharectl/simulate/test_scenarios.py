"""Every scenario in ``tests/scenarios`` comes out as it says itself."""

from pathlib import Path

import pytest

from gpusharectl.simulate.engine import play
from gpusharectl.simulate.result import summed
from gpusharectl.simulate.scenario_file import read_scenario

FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_expected(file: Path) -> None:
    scenario = read_scenario(file.read_text(), file.name)
    assert scenario.expected
    run = summed(scenario, play(scenario, scenario.choice))
    assert run.wrong == ()


def test_they_are_found() -> None:
    assert len(FILES) >= 5
