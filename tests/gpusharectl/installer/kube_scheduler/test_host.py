"""When kube-scheduler is tried, waited for, how long, proved, and put back."""

from pathlib import Path

import pytest

from gpusharectl.installer.kube_scheduler.host import (
    SchedulerTimeouts,
    configure_scheduler,
    prove_scheduler,
    restore_scheduler,
)
from gpusharectl.installer.kube_scheduler.host_files import FileChange
from gpusharectl.installer.progress import Exit, InstallError
from tests.gpusharectl.installer.installed_cluster import (
    AFTER,
    BEFORE,
    SCHEDULER,
    Listener,
    Scheduler,
    kubeadm_host,
)


@pytest.fixture
def host(tmp_path: Path) -> Scheduler:
    return Scheduler(kubeadm_host(tmp_path))


def test_checked_written_awaited_proved(host: Scheduler) -> None:
    """Nothing to write is still awaited and proved: an earlier run may be cut off."""
    screen = Listener()
    configure_scheduler(host, screen)
    assert host.did == ["check", "apply", "wait", "probe"]
    assert screen.lines == [
        f"{SCHEDULER}  +1 -0 lines",
        "kube-scheduler runs and calls the extender",
    ]
    configure_scheduler(host, screen)
    assert host.did[4:] == ["wait", "probe"]


BACK = "x; its old configuration is restored, and it runs"


@pytest.mark.parametrize(
    ("there", "step", "words", "left", "last"),
    [
        (False, "check", "no file was changed: x", BEFORE, ["check"]),
        (False, "wait", BACK, BEFORE, ["roll back", "wait"]),
        (False, "probe", BACK, BEFORE, ["roll back", "wait"]),
        # kube-scheduler has a reason of its own, and cards are offered.
        (True, "wait", "did not start: x; it has run with", AFTER, ["wait"]),
        # One that worked before is left: the way is blocked.
        (True, "probe", "does not call the extender: x", AFTER, ["wait", "probe"]),
    ],
)
def test_one_that_does_not_come_up_is_put_back(
    host: Scheduler, there: bool, step: str, words: str, left: bytes, last: list[str]
) -> None:
    if there:
        configure_scheduler(host, Listener())
    host.ill[step] = "x"
    with pytest.raises(InstallError, match=words):
        configure_scheduler(host, Listener())
    assert host.files.read(SCHEDULER) == left
    assert host.did[-len(last) :] == last


def test_a_record_that_follows_an_edit_is_no_change(host: Scheduler) -> None:
    """Somebody has edited the manifest, and kube-scheduler does not start with that."""
    configure_scheduler(host, Listener())
    host.plan = lambda: [FileChange("/etc/state.json", None, b"{}")]
    host.ill["wait"] = "unknown flag"
    with pytest.raises(InstallError, match="unknown flag; it has run with"):
        configure_scheduler(host, Listener())
    assert host.did[-1] == "wait"
    assert host.files.read(SCHEDULER) == AFTER


@pytest.mark.parametrize("seen", [False, True])
def test_only_an_unfinished_first_run_is_undone(host: Scheduler, seen: bool) -> None:
    """It was cut off before kube-scheduler was seen, and its files are not known."""
    host.apply(host.plan())
    if seen:
        configure_scheduler(host, Listener())
    host.ill["wait"] = "x"
    with pytest.raises(
        InstallError, match="it has run with" if seen else BACK
    ) as caught:
        configure_scheduler(host, Listener())
    assert host.files.read(SCHEDULER) == (AFTER if seen else BEFORE)
    assert ("mend kube-scheduler" in caught.value.remedy) == seen


def test_a_file_that_cannot_be_edited_is_a_refusal(host: Scheduler) -> None:
    host.ill["plan"] = "is not YAML"
    with pytest.raises(InstallError, match="is not YAML") as caught:
        configure_scheduler(host, Listener())
    assert caught.value.exit_code == Exit.REFUSED


def test_of_several_none_is_proved_alone(host: Scheduler) -> None:
    """The leader answers the probe, and that may be one not set yet."""
    host.ill["probe"] = "bound without asking"
    configure_scheduler(host, Listener(), alone=False)
    with pytest.raises(InstallError, match="bound without asking"):
        prove_scheduler(host, Listener())
    host.ill.clear()
    prove_scheduler(host, Listener())


def test_taken_back(host: Scheduler) -> None:
    configure_scheduler(host, Listener())
    screen = Listener()
    restore_scheduler(host, screen)
    assert host.files.read(SCHEDULER) == BEFORE
    assert screen.lines[-1] == "kube-scheduler runs with its old configuration"
    restore_scheduler(host, screen)
    assert screen.lines[-1] == "kube-scheduler's configuration has no gpushare entries"


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
