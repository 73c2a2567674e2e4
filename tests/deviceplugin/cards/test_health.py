"""Which cards are sick: by readings, by faults, and how they get well."""

import json
import shutil
from pathlib import Path

import pytest

from deviceplugin.cards.health import Health
from gpushare.cards.source import CardReading, XidEvent
from gpushare.domain.model import CardUUID
from gpushare.kube.cluster import Json

ONE, TWO = CardUUID("GPU-one"), CardUUID("GPU-two")
LOST = "the driver has lost it"
TOLD_79 = "XID 79, until the driver is loaded again or an operator clears it"


def kept_in(file: Path | None) -> Health:
    found = Health([999], file)
    found.set_known([ONE, TWO])
    found.set_driver_load("first")
    return found


@pytest.fixture
def health() -> Health:
    return kept_in(None)


def read(health: Health, *failures: str, uuid: CardUUID = ONE) -> list[bool]:
    """Take readings one after the other; tell after which the card was sick."""
    told = []
    for failure in failures:
        health.read([CardReading(uuid, None if failure else 0, failure)])
        told.append(uuid in health.sick())
    return told


def test_good_readings_count_from_the_last_bad_one(health: Health) -> None:
    assert read(health, "") == [False]
    assert all(read(health, LOST, "", "", "it hangs", "", ""))
    assert health.sick() == {ONE: "it hangs"}
    assert read(health, "") == [False]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109, 999])
def test_a_program_s_own_fault_makes_no_card_sick(health: Health, xid: int) -> None:
    assert not health.record_fault(XidEvent(ONE, xid))
    assert not health.record_fault(XidEvent(None, xid))
    assert health.sick() == {}


def test_a_new_loading_ends_faults(health: Health) -> None:
    for xid in (79, 48, 79):
        health.record_fault(XidEvent(ONE, xid))
    health.set_driver_load("first")
    health.set_driver_load("")
    assert health.sick()[ONE].startswith("XID 48, 79, until")
    health.set_driver_load("second")
    assert health.sick() == {}
    health.record_fault(XidEvent(ONE, 62))
    assert health.sick()[ONE].startswith("XID 62, until")


def test_a_fault_of_an_unknown_loading_waits_for_two_known_ones() -> None:
    """The first name known may be that of the fault's own loading."""
    health = Health()
    health.record_fault(XidEvent(ONE, 79))
    health.set_driver_load("first")
    assert ONE in health.sick()
    health.set_driver_load("second")
    assert health.sick() == {}


def test_an_operator_clears_faults_and_no_failures(health: Health) -> None:
    for uuid in (ONE, TWO):
        health.record_fault(XidEvent(uuid, 79))
    read(health, LOST)
    assert health.clear(ONE)
    assert not health.clear(ONE)
    assert health.sick() == {ONE: LOST, TWO: TOLD_79}


def test_both_kinds_must_be_over(health: Health) -> None:
    health.record_fault(XidEvent(ONE, 79))
    assert read(health, LOST) == [True]
    assert health.sick() == {ONE: f"{LOST}; {TOLD_79}"}
    read(health, "", "", "")
    assert health.sick() == {ONE: TOLD_79}
    health.set_driver_load("second")
    assert health.sick() == {}


def test_a_fault_of_no_card_is_one_of_all(health: Health) -> None:
    health.record_fault(XidEvent(None, 79))
    assert set(health.sick()) == {ONE, TWO}
    health.clear(ONE)
    health.set_known([ONE, TWO])
    assert set(health.sick()) == {TWO}


def test_a_fault_of_no_card_waits_for_cards() -> None:
    before = Health()
    before.record_fault(XidEvent(None, 79))
    assert before.sick() == {}
    after = Health()
    after.restore(before.state())
    after.set_known([])
    after.set_known([ONE])
    assert after.sick() == {ONE: TOLD_79}


def test_faults_survive_a_restart(tmp_path: Path) -> None:
    """Failures do not: the next reading tells. Only a change is written."""
    path = tmp_path / "folder" / "health.json"
    health = kept_in(path)
    health.record_fault(XidEvent(ONE, 79))
    read(health, LOST, uuid=TWO)
    health.save()
    after = Health(file=path)
    assert after.sick() == {ONE: TOLD_79}
    assert after.state() == health.state()
    path.unlink()
    health.save()
    assert not path.exists()
    after.set_driver_load("first")
    assert after.sick() == {ONE: TOLD_79}
    after.set_driver_load("second")
    assert after.sick() == {}
    after.restore(health.state())
    assert after.sick() == {}


def fault(**fields: object) -> Json:
    return {"card": "GPU-one", "xid": 79, "load": "first", **fields}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"v": 2, "faults": []}',
        '{"v": 1}',
        json.dumps({"v": 1, "faults": [fault(), fault(card=5)]}),
        json.dumps({"v": 1, "faults": [fault(xid="79")]}),
        "\x00" * 100,
    ],
)
def test_a_broken_file_is_said_and_changes_nothing(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "health.json"
    path.write_text(text)
    health = kept_in(path)
    [record] = caplog.records
    assert record.message == "health cannot be restored"
    assert record.because.startswith(f"{path}: health")  # type: ignore[attr-defined]
    health.record_fault(XidEvent(TWO, 79))
    assert list(health.sick()) == [TWO]
    health.save()
    assert path.read_text() == health.state()


@pytest.mark.parametrize("name", ["health.json", ".health.json.part"])
def test_a_file_that_cannot_be_written_stops_nobody(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).mkdir()
    health = kept_in(tmp_path / "health.json")
    caplog.clear()
    for _ in range(2):
        health.save()
    assert caplog.messages == ["health cannot be saved"] * 2
    shutil.rmtree(tmp_path / name)
    (tmp_path / ".health.json.part").unlink(missing_ok=True)
    health.save()
    assert (tmp_path / "health.json").read_text() == health.state()
