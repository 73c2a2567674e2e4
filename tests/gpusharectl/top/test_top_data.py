"""``-o json`` and ``-o yaml`` of top: the promised shape."""

import re
from typing import Any

import pytest

from gpusharectl import inspect
from gpusharectl.output import encode
from gpusharectl.top import command
from gpusharectl.top.rows import Sign
from tests.gpusharectl.exporter_pages import TICK
from tests.gpusharectl.test_data import keys_in, same_as_json
from tests.gpusharectl.top_states import SCENES, top_of

KEYS = "v at books totals nodes cards pods warnings"


def pod_named(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (pod for pod in data["pods"] if pod["name"] == name)
    return dict(found)


@pytest.mark.parametrize("name", SCENES)
def test_the_shape_is_the_same_for_every_cluster(name: str) -> None:
    """Each key is in the module's promise; every value is JSON; nothing is cut."""
    data = encode(top_of(name))
    assert set(data) == set(KEYS.split())
    assert same_as_json(data)
    promised = set(re.findall(r"\w+", f"{command.__doc__} {inspect.__doc__}"))
    assert set(keys_in(data)) <= promised
    assert len(data["pods"]) == len(top_of(name).pods)


def test_every_sign_is_promised() -> None:
    promised = set(re.findall(r"[\w-]+", command.__doc__ or ""))
    assert {sign.value for sign in Sign} <= promised


def test_numbers() -> None:
    """What is used beside what was allotted, in MiB."""
    data = encode(top_of("at_work"))
    assert data["totals"] == {
        "cards": 3,
        "memory_mib": 38912,
        "allotted_mib": 33536,
        "used_mib": 26700,
        "cards_told": 3,
    }
    app = pod_named(data, "app-1")
    assert app["allotted"] == {"cores": 1, "units": 50, "memory_mib": 12800}
    assert (app["used_mib"], app["sm_percent"], app["idle_s"]) == (14300, 55, 0)
    assert [flag["sign"] for flag in app["flags"]] == ["over"]
    card = data["cards"][2]
    assert (card["outside_mib"], card["unattributed_mib"]) == (1300, 300)
    assert [flag["do"] for flag in card["flags"]] == ["nvidia-smi on node-2"]
    web, model = pod_named(encode(top_of("containers")), "pair")["containers"]
    assert (web["name"], web["allotted"]["units"], web["used_mib"]) == ("web", 4, 1600)
    assert (model["name"], model["last_busy"]) == ("model", TICK)
    assert (web["over"], model["over"]) == (True, False)


def test_unknown_is_null_and_idle_is_0() -> None:
    """Nor is no share an amount of nothing."""
    data = encode(top_of("unknown"))
    pod = pod_named(data, "b")
    assert (pod["used_mib"], pod["sm_percent"], pod["idle_s"]) == (None, None, None)
    assert data["cards"][1]["used_mib"] is None
    assert data["totals"]["cards_told"] == 1
    assert encode(top_of("no_exporters"))["totals"]["used_mib"] is None
    idle = pod_named(encode(top_of("at_work")), "app-3")
    assert (idle["used_mib"], idle["sm_percent"], idle["idle_s"]) == (0, 0, 10800)
    spy = pod_named(encode(top_of("elsewhere")), "spy")
    assert (spy["allotted"], spy["stay"], spy["uid"]) == (None, None, None)
    assert (spy["node"], spy["index"]) == ("node-2", 1)
