"""Which cards are sick: by readings, by faults, and how they get well."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.cards.health import APPLICATION_XIDS, Health, HealthFile
from deviceplugin.cards.source import CardReading, XidEvent
from gpushare.domain.model import CardUUID
from gpushare.kube.json_reader import Malformed

ONE, TWO = CardUUID("GPU-one"), CardUUID("GPU-two")
LOST = "the driver has lost it"
TOLD_79 = "XID 79, until the driver is loaded again or an operator clears it"


@pytest.fixture
def health() -> Health:
    found = Health(harmless=[999])
    found.know([ONE, TWO])
    found.loaded("first")
    return found


def read(health: Health, *failures: str, uuid: CardUUID = ONE) -> list[bool]:
    """Take readings one after the other; tell after which the card was sick."""
    told = []
    for failure in failures:
        health.read([CardReading(uuid, None if failure else 0, failure)])
        told.append(uuid in health.sick())
    return told


def test_a_failed_reading_makes_sick_at_once(health: Health) -> None:
    """And three good ones in a row make well."""
    assert read(health, "", LOST, "", "", "") == [False, True, True, True, False]
    assert read(health, LOST) == [True]
    assert health.sick() == {ONE: LOST}


def test_good_readings_count_from_the_last_bad_one(health: Health) -> None:
    """A card that comes and goes stays sick."""
    assert all(read(health, LOST, "", "", LOST, "", ""))
    assert read(health, "") == [False]


def test_the_last_failure_is_the_one_told(health: Health) -> None:
    """Lost first, hanging now."""
    read(health, LOST, "it did not answer")
    assert health.sick() == {ONE: "it did not answer"}


def test_each_card_fails_for_itself(health: Health) -> None:
    """One reading of all cards."""
    health.read([CardReading(ONE, None, LOST), CardReading(TWO, 5)])
    assert list(health.sick()) == [ONE]


@pytest.mark.parametrize("xid", sorted({*APPLICATION_XIDS, 999}))
def test_a_program_s_own_fault_makes_no_card_sick(health: Health, xid: int) -> None:
    """Nor one that the settings call harmless, with a card and without."""
    assert not health.fault(XidEvent(ONE, xid))
    assert not health.fault(XidEvent(None, xid))
    assert health.sick() == {}


def test_the_harmless_ones_are_those_of_nvidia_s_plugin() -> None:
    """Written down once more, so that none slips in or out unseen."""
    assert {13, 31, 43, 45, 68, 109} == APPLICATION_XIDS


def test_a_fault_makes_sick_whatever_is_read(health: Health) -> None:
    """A card with a fault may answer as if nothing were."""
    assert health.fault(XidEvent(ONE, 79))
    assert read(health, "", "", "", "") == [True] * 4
    assert health.sick() == {ONE: TOLD_79}


def test_faults_are_told_together(health: Health) -> None:
    """Each number once, in order."""
    for xid in (79, 48, 79):
        health.fault(XidEvent(ONE, xid))
    assert health.sick()[ONE].startswith("XID 48, 79, until")


def test_a_new_loading_ends_faults(health: Health) -> None:
    """The same loading told again does not, and no name at all says nothing."""
    health.fault(XidEvent(ONE, 79))
    health.loaded("first")
    health.loaded("")
    assert ONE in health.sick()
    health.loaded("second")
    assert health.sick() == {}


def test_a_fault_of_the_new_loading_stays() -> None:
    """Only what is older than the loading is over."""
    health = Health()
    health.loaded("first")
    health.fault(XidEvent(ONE, 79))
    health.fault(XidEvent(ONE, 48))
    health.loaded("second")
    health.fault(XidEvent(ONE, 62))
    assert health.sick()[ONE].startswith("XID 62, until")


def test_a_fault_of_an_unknown_loading_waits_for_two_known_ones() -> None:
    """The first name known may be that of the fault's own loading."""
    health = Health()
    health.fault(XidEvent(ONE, 79))
    health.loaded("first")
    assert ONE in health.sick()
    health.loaded("second")
    assert health.sick() == {}


def test_an_operator_clears_faults_and_no_failures(health: Health) -> None:
    """Of one card, or of all; whether there was any is told."""
    for uuid in (ONE, TWO):
        health.fault(XidEvent(uuid, 79))
    read(health, LOST)
    assert health.clear(ONE)
    assert not health.clear(ONE)
    assert health.sick() == {ONE: LOST, TWO: TOLD_79}
    assert health.clear()
    assert health.sick() == {ONE: LOST}


def test_both_kinds_must_be_over(health: Health) -> None:
    """Either alone keeps the card sick; both are told."""
    health.fault(XidEvent(ONE, 79))
    read(health, LOST)
    assert health.sick() == {ONE: f"{LOST}; {TOLD_79}"}
    read(health, "", "", "")
    assert health.sick() == {ONE: TOLD_79}
    health.loaded("second")
    assert health.sick() == {}


def test_a_fault_of_no_card_is_one_of_all(health: Health) -> None:
    """Each may be cleared for itself."""
    health.fault(XidEvent(None, 79))
    assert set(health.sick()) == {ONE, TWO}
    health.clear(ONE)
    health.know([ONE, TWO])
    assert set(health.sick()) == {TWO}


def test_a_fault_of_no_card_waits_for_cards() -> None:
    """It befalls the first cards found, also after a restart between."""
    before = Health()
    before.fault(XidEvent(None, 79))
    assert before.sick() == {}
    after = Health()
    after.restore(before.state())
    after.know([])
    after.know([ONE])
    assert after.sick() == {ONE: TOLD_79}


def test_faults_survive_a_restart(health: Health, tmp_path: Path) -> None:
    """Failures do not: the next reading tells."""
    kept = HealthFile(tmp_path / "folder" / "health.json")
    health.fault(XidEvent(ONE, 79))
    read(health, LOST, uuid=TWO)
    assert kept.save(health) == ""
    after = Health()
    assert HealthFile(tmp_path / "folder" / "health.json").load(after) == ""
    assert after.sick() == {ONE: TOLD_79}
    assert after.state() == health.state()
    after.loaded("first")
    assert after.sick() == {ONE: TOLD_79}
    after.loaded("second")
    assert after.sick() == {}


def test_faults_outlived_by_a_loading_are_not_restored(health: Health) -> None:
    """Whether the loading was told before or after."""
    health.fault(XidEvent(ONE, 79))
    after = Health()
    after.loaded("second")
    after.restore(health.state())
    assert after.sick() == {}


def test_no_file_is_no_complaint(health: Health, tmp_path: Path) -> None:
    """The first start."""
    assert HealthFile(tmp_path / "health.json").load(health) == ""


def fault(**fields: object) -> str:
    good = {"card": "GPU-one", "xid": 79, "load": "first", **fields}
    return json.dumps({"v": 1, "faults": [good]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"v": 2, "faults": []}',
        '{"v": 1}',
        '{"v": 1, "faults": {}}',
        fault(card=5),
        fault(xid="79"),
        fault(xid=-1),
        fault(load=[]),
        "\x00" * 100,
    ],
)
def test_a_broken_file_is_said_and_stops_nobody(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as empty, and the next save mends it."""
    path = tmp_path / "health.json"
    path.write_text(text)
    health, kept = Health(), HealthFile(path)
    complaint = kept.load(health)
    assert complaint.startswith(f"{path}: health")
    assert complaint.endswith("faults from before are forgotten")
    assert [record.message for record in caplog.records] == [
        "health cannot be restored"
    ]
    assert health.sick() == {}
    assert kept.save(health) == ""
    assert kept.load(health) == ""


def test_a_half_broken_state_changes_nothing(health: Health) -> None:
    """All or nothing."""
    health.fault(XidEvent(TWO, 79))
    good = json.loads(fault())
    good["faults"].append({})
    with pytest.raises(Malformed):
        health.restore(json.dumps(good))
    assert list(health.sick()) == [TWO]


def unreadable(path: Path) -> None:
    path.mkdir()


def unwritable(path: Path) -> None:
    path.with_name(f"{path.name}.unfinished").mkdir()


@pytest.mark.parametrize("trouble", [unreadable, unwritable])
def test_a_file_that_cannot_be_written_stops_nobody(
    health: Health,
    trouble: Callable[[Path], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said each time, until it can be."""
    path = tmp_path / "health.json"
    trouble(path)
    kept = HealthFile(path)
    for _ in range(2):
        assert "a restart forgets the faults" in kept.save(health)
    assert caplog.records
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            folder.rmdir()
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.unfinished").unlink(missing_ok=True)
    assert kept.save(health) == ""
    assert path.read_text() == health.state()


def test_a_folder_in_the_file_s_place_is_said(health: Health, tmp_path: Path) -> None:
    """Reading is no more able to crash than writing."""
    assert "Is a directory" in HealthFile(tmp_path).load(health)


def test_only_a_change_is_written(health: Health, tmp_path: Path) -> None:
    """The node's disk is not worn by each reading."""
    path = tmp_path / "health.json"
    kept = HealthFile(path)
    kept.save(health)
    path.unlink()
    kept.save(health)
    assert not path.exists()
    health.fault(XidEvent(ONE, 79))
    kept.save(health)
    assert path.exists()
