"""Who runs which cluster: numbers, records, and what a dead one has left."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machine import needs
from tests.testbed.kubeadm import instances, network
from tests.testbed.kubeadm.instances import Claim, Record
from tests.testbed.kubeadm.network import Addresses

CLAIMS_AND_WAITS = """
import sys, pathlib, time
from tests.machine import needs
from tests.testbed.kubeadm import instances
records, folder = map(pathlib.Path, sys.argv[1:])
claim = instances.Claim.take(folder, records=records)
print(claim.record.instance, flush=True)
time.sleep(600)
"""


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that touch nothing on this machine but their records."""
    monkeypatch.setattr(network, "taken", lambda: {Addresses(0).network})
    monkeypatch.setattr(network, "remove_link", lambda _: None)
    # A real cluster of the same number may be running meanwhile.
    monkeypatch.setattr(instances.cgroups, "left", lambda _: [])


def test_claims_take_different_numbers(tmp_path: Path, quiet: None) -> None:
    """A number whose network is in use is passed over; the end leaves no record."""
    records = tmp_path / "records"
    claims = [Claim.take(tmp_path / str(n), records=records) for n in range(2)]
    assert [each.record.instance for each in claims] == [1, 2]
    assert all(instances.alive(each.record, records) for each in claims)
    for each in claims:
        each.release()
    assert not records.exists()


def test_others_see_what_a_claim_writes(tmp_path: Path, quiet: None) -> None:
    claim = Claim.take(tmp_path / "nodes", records=tmp_path / "records")
    told = replace(claim.record, kubeconfig="/a", ready=True)
    claim.write(told)
    assert instances.known(tmp_path / "records") == [told]
    claim.release()


def test_whoever_comes_next_clears_up_after_a_killed_one(
    tmp_path: Path, quiet: None
) -> None:
    """Its folder goes, and its number is free again."""
    needs(shutil.which("ip") is not None, "ip", "apt-get install iproute2")
    records, folder = tmp_path / "records", tmp_path / "nodes"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMS_AND_WAITS, str(records), str(folder)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as killed:
        assert killed.stdout is not None
        taken = int(killed.stdout.readline())
        (record,) = instances.known(records)
        assert instances.alive(record, records)
        killed.kill()
    assert record == Record(taken, str(folder), killed.pid)
    assert not instances.alive(record, records)
    instances.clear_up(records)
    assert not folder.exists()
    assert not records.exists()


def test_settings_go_back_with_the_last_cluster(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first one found them, and not before the last one has gone."""
    settings = [{"kernel.panic": "1"}, {"kernel.panic": "10"}]
    written: list[dict[str, str]] = []
    monkeypatch.setattr(instances.sysctls, "read", lambda: settings.pop(0))
    monkeypatch.setattr(instances.sysctls, "write_back", written.append)
    claims = [Claim.take(tmp_path / str(n), records=tmp_path / "r") for n in range(2)]
    claims[0].release()
    assert written == []
    claims[1].release()
    assert written == [{"kernel.panic": "1"}]
