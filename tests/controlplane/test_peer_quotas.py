"""What peer projects count in quotas, as a real API server counts ours.

The cases stand with all others in ``tests/cases``; a quota names our resource.
"""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from tests.controlplane.bitfusionpods import quota
from tests.test_peer_cases import CASES
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import MEMORY, pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

COUNTED = f"requests.{MEMORY}"
QUOTAS = [case_id for case_id, case in CASES.items() if case["kind"] == "quota"]


@pytest.fixture(scope="module")
def counting(plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the controller without which no quota is in force."""
    with plane.start_controller_manager(["resourcequota-controller"]):
        yield plane


def container(name: str, units: int) -> Json:
    asked = {MEMORY: str(units)}
    resources = {"requests": asked, "limits": asked}
    return {"name": name, "image": "local.test/pause:1", "resources": resources}


@pytest.mark.parametrize("case_id", QUOTAS)
def test_our_answer(counting: ControlPlane, space: str, case_id: str) -> None:
    case, rest = CASES[case_id], counting.rest
    path = f"/api/v1/namespaces/{space}"
    rest.must(
        "POST", f"{path}/resourcequotas", quota("most", COUNTED, case["quota"]["mem"])
    )
    wait_until(
        lambda: rest.must("GET", f"{path}/resourcequotas/most").get("status", {}),
        "a quota in force",
        accept=lambda status: status.get("used", {}).get(COUNTED) == "0",
    )
    parts = {
        "initContainers": [
            container(f"i{number}", one["mem"])
            for number, one in enumerate(case.get("init_in_pod", ()))
        ],
        "containers": [
            container(f"c{number}", one["mem"])
            for number, one in enumerate(case["request"])
        ],
    }
    status, answer = rest.post(f"{path}/pods", pod("asks", space, spec=parts))
    if case["answer"]["fit"]:
        assert status == HTTPStatus.CREATED, answer
    else:
        assert status == HTTPStatus.FORBIDDEN
        assert "exceeded quota: most" in answer["message"]
