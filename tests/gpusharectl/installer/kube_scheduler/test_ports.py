"""The extender's ports are reserved on a host, beside others, and released again."""

import os
from pathlib import Path

import pytest

from gpusharectl.installer.kube_scheduler.files import SchedulerFiles
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.kubeadm import KubeadmFile
from gpusharectl.installer.kube_scheduler.ports import (
    AT_BOOT,
    RESERVED,
    plan_released_ports,
    plan_reserved_ports,
)
from tests.gpusharectl.installer.kube_scheduler.test_files import KUBEADM, PLAIN

OURS = "39996,39998-39999"


def host_with(folder: Path, ports: str) -> HostFiles:
    """A host with these ports reserved."""
    files = HostFiles(folder)
    setting = files.place(RESERVED)
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{ports}\n")
    return files


def now(files: HostFiles) -> str:
    return (files.read(RESERVED) or b"").decode().strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", OURS),
        ("8080,9000-9100", f"8080,9000-9100,{OURS}"),
        ("39000-39998", "39000-39999"),
        ("39999", OURS),
    ],
)
def test_others_stay(tmp_path: Path, before: str, after: str) -> None:
    files = host_with(tmp_path, before)
    there = files.place(RESERVED).stat().st_ino
    files.make(plan_reserved_ports(files))
    assert now(files) == after
    assert (
        f"ip_local_reserved_ports = {after}\n" in (files.read(AT_BOOT) or b"").decode()
    )
    assert not plan_reserved_ports(files)
    # A setting of the kernel's cannot be exchanged for a new file.
    assert files.place(RESERVED).stat().st_ino == there


def test_what_came_later_stays(tmp_path: Path) -> None:
    files = host_with(tmp_path, "8080")
    files.make(plan_reserved_ports(files))
    files.place(RESERVED).write_text(f"8080,9000,{OURS}\n")
    assert not plan_reserved_ports(files)
    files.make(plan_released_ports(files))
    assert now(files) == "8080,9000"
    assert files.read(AT_BOOT) is None
    assert not plan_released_ports(files)


def test_a_reservation_of_somebody_else_stays(tmp_path: Path) -> None:
    files = host_with(tmp_path, "39990-40000")
    assert not plan_reserved_ports(files)
    assert not plan_released_ports(files)


def test_a_setting_that_was_lost_is_made_again(tmp_path: Path) -> None:
    files = host_with(tmp_path, "")
    files.make(plan_reserved_ports(files))
    files.place(RESERVED).write_text("\n")
    files.make(plan_reserved_ports(files))
    assert now(files) == OURS


def test_a_host_that_does_not_let_it_be_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers that are used as hosts."""
    files = host_with(tmp_path, "")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not plan_reserved_ports(files)
    assert not plan_reserved_ports(HostFiles(tmp_path / "none"))


def test_it_is_part_of_the_hosts_files(tmp_path: Path) -> None:
    """kube-scheduler reads none of it, so that it is not restarted for it."""
    host = host_with(tmp_path, "8080")
    host.write(KubeadmFile.path, KUBEADM)
    files = SchedulerFiles(host, KubeadmFile(), PLAIN)
    files.make(files.plan())
    assert now(host) == f"8080,{OURS}"
    host.place(RESERVED).write_text("8080\n")
    again = files.plan()
    assert [each.path for each in again] == [RESERVED]
    assert not files.are_read(again)
    files.make(again)
    files.make(files.plan_restore())
    assert now(host) == "8080"
    assert host.read(AT_BOOT) is None
