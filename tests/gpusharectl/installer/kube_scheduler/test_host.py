"""How long kube-scheduler is waited for."""

import pytest

from gpusharectl.installer.kube_scheduler.host import SchedulerTimeouts

USUAL = SchedulerTimeouts()


@pytest.mark.parametrize(
    ("timeout_s", "waits", "probes", "jobs"),
    [
        (None, USUAL.wait_s, USUAL.probe_s, USUAL.job_s),
        (600.0, 600.0, USUAL.probe_s, 600.0),
        (50.0, 50.0, 50.0, 50.0),
        # kubelet gives the old pod 30 s to end.
        (5.0, 45.0, 5.0, 5.0),
    ],
)
def test_an_operators_timeout(
    timeout_s: float | None, waits: float, probes: float, jobs: float
) -> None:
    """It may be longer than usual, but not for what only asks."""
    found = SchedulerTimeouts.within(timeout_s)
    asked = (found.check_s, found.probe_s)
    assert (found.wait_s, *asked, found.job_s) == (waits, probes, probes, jobs)
