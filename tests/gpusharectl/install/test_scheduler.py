"""When kube-scheduler is tried, waited for, proved, and put back."""

from pathlib import Path

import pytest

from gpusharectl.install.progress import Exit, Trouble
from gpusharectl.install.scheduler import prove, put, take
from tests.gpusharectl.install.stand_ins import (
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


def words(trouble: Trouble | None) -> str:
    assert trouble is not None
    return trouble.why


def test_checked_written_awaited_proved(host: Scheduler) -> None:
    screen = Listener()
    assert put(host, screen) is None
    assert host.did == ["check", "apply", "wait", "probe"]
    assert screen.lines == [
        f"{SCHEDULER}  +1 -0 lines",
        "kube-scheduler runs and calls the extender",
    ]


def test_nothing_to_write_is_still_awaited_and_proved(host: Scheduler) -> None:
    """An earlier run may have been cut off just after it wrote."""
    put(host, Listener())
    host.did.clear()
    assert put(host, Listener()) is None
    assert host.did == ["wait", "probe"]


def test_a_bad_configuration_is_never_written(host: Scheduler) -> None:
    host.ill["check"] = "no kind KubeSchedulerConfiguration"
    assert "nothing was written: no kind Kube" in words(put(host, Listener()))
    assert host.did == ["check"]
    assert host.files.read(SCHEDULER) == BEFORE


def test_a_file_that_cannot_be_edited_is_a_refusal(host: Scheduler) -> None:
    host.ill["plan"] = "is not YAML"
    trouble = put(host, Listener())
    assert trouble == Trouble("is not YAML", exit_code=Exit.REFUSED)


@pytest.mark.parametrize("step", ["wait", "probe"])
def test_one_that_does_not_come_up_is_rolled_back(host: Scheduler, step: str) -> None:
    host.ill[step] = "CrashLoopBackOff"
    why = words(put(host, Listener()))
    assert why.endswith(
        "CrashLoopBackOff; its old configuration is restored, and it runs"
    )
    assert host.files.read(SCHEDULER) == BEFORE
    assert host.did[-2:] == ["roll back", "wait"]


def test_what_an_interrupted_run_wrote_is_put_back_too(host: Scheduler) -> None:
    """It knows no earlier files then; ours are taken out."""
    put(host, Listener())
    host.ill["wait"] = "it crashed"
    assert "its old configuration is restored" in words(put(host, Listener()))
    assert host.files.read(SCHEDULER) == BEFORE
    assert "roll back" not in host.did


def test_one_that_worked_before_is_left_when_the_way_is_blocked(
    host: Scheduler,
) -> None:
    put(host, Listener())
    host.ill["probe"] = "connection refused"
    assert "connection refused" in words(put(host, Listener()))
    assert host.files.read(SCHEDULER) == AFTER


def test_of_several_none_is_proved_alone(host: Scheduler) -> None:
    """The leader answers the probe, and that may be one not set yet."""
    host.ill["probe"] = "bound without asking"
    assert put(host, Listener(), alone=False) is None
    assert "bound without asking" in words(prove(host, Listener()))
    host.ill.clear()
    assert prove(host, Listener()) is None


def test_files_that_are_read_later_prove_nothing_yet(host: Scheduler) -> None:
    screen = Listener()
    assert put(host, screen, at_once=False) is None
    assert "probe" not in host.did
    assert "calls the extender" not in screen.text
    assert put(host, screen, at_once=False) is None
    assert host.did[-1] == "probe"


def test_taken_back(host: Scheduler) -> None:
    put(host, Listener())
    screen = Listener()
    assert take(host, screen) is None
    assert host.files.read(SCHEDULER) == BEFORE
    assert screen.lines[-1] == "kube-scheduler runs with its old configuration"
    assert take(host, screen) is None
    assert screen.lines[-1] == "kube-scheduler's configuration has nothing of ours"
