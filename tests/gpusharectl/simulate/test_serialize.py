"""A simulation as data: the shape is a promise."""

import csv
import io
from dataclasses import replace

import orjson
import pytest

from gpusharectl.simulate.result import thinned
from gpusharectl.simulate.scenario import Step
from gpusharectl.simulate.serialize import report_csv, report_data
from tests.gpusharectl.simulate.building import come, node, played, scenario
from tests.gpusharectl.simulate.test_screens import compared, nothing, report, seeds


def test_all_of_it_is_json() -> None:
    found = orjson.loads(orjson.dumps(report_data(seeds())))
    assert list(found) == [
        *("v", "scenario", "nodes", "cards", "units", "pods", "runs", "remarks"),
        *("not_played", "unchecked"),
    ]
    assert found["unchecked"] is None
    assert (found["nodes"], found["cards"], found["units"]) == (2, 3, 152)
    (run,) = found["runs"]
    assert run["policy"] == "first-fit"
    assert run["placed"] == run["at_once"] + run["waited"]
    assert run["placed"] + run["refused"] + run["left"] == found["pods"] == 12
    assert run["room"][0]["asks"].startswith("9 units")
    pods = {pod["name"]: pod for pod in run["pods"]}
    assert (pods["small"]["node"], pods["small"]["cards"]) == ("node-1", [0])
    assert pods["two"]["outcome"] == "refused"
    assert sum(pods["two"]["reasons"].values()) == 2
    assert pods["two"]["node"] is None


def test_what_nobody_knows_is_null_and_never_0() -> None:
    data = report_data(nothing())
    assert data["runs"][0]["end"]["fragmented"] is None
    assert data["runs"][0]["longest_wait_s"] is None
    lines = list(csv.DictReader(io.StringIO(report_csv(nothing().runs))))
    assert lines[0]["fragmented"] == ""


def test_the_curves_as_lines() -> None:
    lines = list(csv.DictReader(io.StringIO(report_csv(compared().runs))))
    assert {line["policy"] for line in lines} == {"first-fit", "best-fit", "spread"}
    last = [line for line in lines if line["policy"] == "first-fit"][-1]
    assert (last["held_units"], last["units"]) == ("44", "87")
    assert int(last["arrived_units"]) == pytest.approx(
        float(last["load"]) * 87, abs=0.1
    )
    assert float(last["allotted"]) == pytest.approx(44 / 87, abs=1e-5)


def test_a_long_curve_is_thinned() -> None:
    """The first and the last stay, and those at which fragmentation was looked at."""
    moments = list(played(scenario([node()], *come("a"))).moments)
    many = [replace(moments[0], at_s=number, fragmented=None) for number in range(999)]
    many[500] = replace(many[500], fragmented=0.5)
    found = thinned(many, 100)
    assert len(found) <= 102
    assert {0, 500, 998} <= {moment.at_s for moment in found}


def test_times_of_weeks_are_whole() -> None:
    """At 14 days a second still counts."""
    steps = [Step(1_209_601.0, one) for one in come("a")]
    found = report(scenario([node()], *steps))
    lines = list(csv.DictReader(io.StringIO(report_csv(found.runs))))
    assert lines[-1]["at_s"] == "1209601"
