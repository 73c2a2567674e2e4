"""A simulation as data: the shape is a promise."""

import csv
import io
from dataclasses import replace

import orjson
import pytest

from gpusharectl.simulate.result import Report, thinned
from gpusharectl.simulate.scenario import Step
from gpusharectl.simulate.serialize import report_csv, report_data
from tests.gpusharectl.simulate.building import come, node, played, scenario
from tests.gpusharectl.simulate.test_render import compared, nothing, report, seeds


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


def lines(of: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report_csv(of))))


def test_what_is_not_known_is_null_and_never_0() -> None:
    data = report_data(nothing())
    assert data["runs"][0]["end"]["fragmented"] is None
    assert data["runs"][0]["longest_wait_s"] is None
    assert lines(nothing())[0]["fragmented"] == ""


def test_the_curves_as_lines() -> None:
    """At 14 days a second still counts."""
    found = lines(compared())
    assert {line["policy"] for line in found} == {"first-fit", "best-fit", "spread"}
    last = [line for line in found if line["policy"] == "first-fit"][-1]
    assert (last["held_units"], last["units"]) == ("44", "87")
    told = [float(last[name]) for name in ("arrived_units", "load", "allotted")]
    assert told == pytest.approx([told[1] * 87, told[0] / 87, 44 / 87])
    steps = [Step(1_209_601.0, one) for one in come("a")]
    assert lines(report(scenario([node()], *steps)))[-1]["at_s"] == "1209601"


def test_a_long_curve_is_thinned() -> None:
    """The first and the last stay, and those at which fragmentation was looked at."""
    moments = list(played(scenario([node()], *come("a"))).moments)
    many = [replace(moments[0], at_s=number, fragmented=None) for number in range(999)]
    many[500] = replace(many[500], fragmented=0.5)
    found = thinned(many, 100)
    assert len(found) <= 102
    assert {0, 500, 998} <= {moment.at_s for moment in found}
