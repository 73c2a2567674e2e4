"""READY, STATUS and RESTARTS as ``kubectl get pods`` has them on a real cluster."""

from datetime import UTC, datetime

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Reader
from gpusharectl.demo.kubectl import (
    make_table,
    pod_status,
    ready_of,
    restarts_of,
)


def container(*, ready: bool = False, restarts: int = 0, **state: Json) -> Json:
    return {"ready": ready, "restartCount": restarts, "state": state}


def pod(*containers: Json, spec: Json | None = None, **status: object) -> Reader:
    its = {"phase": "Pending", "containerStatuses": list(containers)} | status
    names = [{"name": f"c{number}"} for number in range(max(1, len(containers)))]
    body = {"containers": names} | (spec or {})
    return Reader({"metadata": {"name": "pod"}, "spec": body, "status": its})


RUNS = container(ready=True, running={"startedAt": "x"})
DONE = container(terminated={"reason": "Completed", "exitCode": 0})
STARTS = container(waiting={"reason": "ContainerCreating"})
INIT_DONE = container(terminated={"exitCode": 0})


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (pod(), "Pending"),
        (pod(phase=""), "Unknown"),
        (pod(reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError"),
        (pod(STARTS), "ContainerCreating"),
        (pod(RUNS, phase="Running"), "Running"),
        (pod(RUNS, DONE, phase="Running"), "Running"),
        (pod(DONE, phase="Succeeded"), "Completed"),
        (pod(container(terminated={"exitCode": 3})), "ExitCode:3"),
        (pod(spec={"schedulingGates": [{"name": "x"}]}), "SchedulingGated"),
        (pod(initContainerStatuses=[INIT_DONE, container()]), "Init:1/2"),
        (pod(initContainerStatuses=[STARTS]), "Init:ContainerCreating"),
        (pod(STARTS, initContainerStatuses=[INIT_DONE]), "ContainerCreating"),
        (pod(RUNS, initContainerStatuses=[{"started": True}]), "Pending"),
    ],
)
def test_status(found: Reader, word: str) -> None:
    """The first container with something to say is heard, init containers before."""
    assert pod_status(found) == word


@pytest.mark.parametrize(
    ("phase", "word"), [("Running", "Terminating"), ("Failed", "Failed")]
)
def test_deleted_pod(phase: str, word: str) -> None:
    found = pod(phase=phase)
    found.raw["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert pod_status(found) == word


def test_counts() -> None:
    found = pod(RUNS, container(restarts=2), container(restarts=1))
    assert (ready_of(found), restarts_of(found)) == ("1/3", "3")


def test_other_kinds_have_their_name_and_age() -> None:
    """kubectl asks for rows of claims and slices too."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    claim = {"metadata": {"name": "c", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    (row,) = make_table("resourceclaims", [claim], {}, moment)["rows"]
    assert row["cells"] == ["c", "24h"]
