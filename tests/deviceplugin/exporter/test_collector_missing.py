"""What is not on the page of metrics, and how that is told."""

import re
import time
from dataclasses import replace
from typing import Any

import pytest

from deviceplugin.exporter.kubelet_check import KubeletRound
from deviceplugin.exporter.snapshot import Round, Snapshot, XidTally
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import CardAnswer
from deviceplugin.telemetry.fields import FIELDS, Field
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from tests.builders import AT as WRITTEN
from tests.builders import page, placement
from tests.deviceplugin.exporter_data import (
    AT,
    BY_CARD,
    DEFAULT,
    A,
    B,
    held,
    owner,
    processes,
    snapshot,
    use,
)
from tests.deviceplugin.exposition_page import ExpositionFixture, busy
from tests.deviceplugin.node_fixture import NODE


def test_before_the_pods_are_known_nothing_is_said_of_them() -> None:
    """Neither 0 allotted nor nobody misplaced; the page says what is missing."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    fixture = ExpositionFixture(snapshot(round_=round_))
    for name in (
        "DCGM_CUSTOM_PROCESS_SM_UTIL",
        "DCGM_CUSTOM_DEV_FB_ALLOCATED",
        "DCGM_CUSTOM_ALLOCATE_MODE",
        "vcuda_placement_disagreements",
    ):
        assert fixture.samples(name) == [], name
    assert fixture.value("vcuda_exporter_trouble", about="pods") == 1
    assert fixture.value("vcuda_collector_success", group="allotment") == 0
    fixture.tenants.replace(iter([page()]))
    assert fixture.samples("vcuda_exporter_trouble") == []
    assert fixture.value("vcuda_collector_success", group="allotment") == 1


def test_an_api_server_that_went_silent_is_told() -> None:
    """What it said last is shown, and that it is old."""
    fixture = busy()
    fixture.heard_s = 80.0
    assert fixture.samples("vcuda_exporter_trouble") == []
    assert fixture.value("vcuda_collector_success", group="allotment") == 1
    fixture.heard_s = 91.0
    assert fixture.value("vcuda_exporter_trouble", about="pods") == 1
    assert fixture.value("vcuda_collector_success", group="allotment") == 0
    assert "shown as they were" in fixture.exposition.troubles()["pods"]
    assert fixture.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048


def test_when_the_api_server_last_spoke() -> None:
    """As of any other group; not before it did."""
    name, about = "vcuda_collect_timestamp_seconds", {"group": "allotment"}
    fixture = busy()
    assert fixture.value(name, **about) is None
    for age_s in (0.0, 1000.0):
        fixture.heard_s = age_s
        before = time.time()
        told = fixture.value(name, **about)
        assert told is not None
        # A page writes fewer digits than there are.
        assert before - age_s - 0.01 <= told <= time.time() - age_s + 0.01
    assert fixture.value("vcuda_collect_duration_seconds", **about) is None


def test_where_pods_are_not_followed_that_is_no_trouble() -> None:
    """As on the edge: cards alone are shown."""
    fixture = ExpositionFixture(
        snapshot(values={A: {fields.GPU_UTIL: 1.0}}), follows=False
    )
    assert fixture.value("DCGM_FI_DEV_GPU_UTIL", UUID=A) == 1
    assert fixture.samples("vcuda_exporter_trouble") == []
    assert fixture.samples("DCGM_CUSTOM_ALLOCATE_MODE") == []


def test_only_what_is_switched_on_is_shown() -> None:
    """By group and by field, whatever was read; help comes with the field."""
    values = {A: {fields.GPU_UTIL: 1.0, fields.MEM_COPY_UTIL: 2.0, fields.FB_USED: 3.0}}
    mine = Field(fields.GPU_UTIL, "gauge", fields.UTILIZATION, "My own words.")
    used = next(one for one in FIELDS if one.name == fields.FB_USED)
    groups = frozenset({fields.UTILIZATION})
    now = snapshot(values=values, groups=groups, fields=(mine, used))
    text = ExpositionFixture(now, pods=[held("a")]).text()
    assert "# HELP DCGM_FI_DEV_GPU_UTIL My own words." in text
    assert set(re.findall(r"^(DCGM_\w+)", text, re.MULTILINE)) == {fields.GPU_UTIL}


def test_containers_use_goes_with_its_group() -> None:
    """And their allotment with its own."""
    fixture = busy(held("a", 8, 50))
    only = frozenset({fields.ALLOTMENT})
    fixture.now = replace(fixture.now, groups=only, processes=None)
    assert fixture.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert fixture.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == 2048
    fixture = busy(held("a", 8, 50), groups=frozenset({fields.PROCESSES}))
    assert fixture.value("DCGM_CUSTOM_PROCESS_SM_UTIL") == 23
    assert fixture.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []
    assert fixture.samples("vcuda_container_core_use_ratio") == []


def test_what_a_card_does_not_have_is_no_sample_and_is_told() -> None:
    """Once for each metric, and only of metrics that are on."""
    values = {A: {fields.GPU_UTIL: 1.0}, B: {fields.GPU_UTIL: 2.0}}
    fixture = busy(values=values, unsupported={A: [fields.ENC_UTIL, fields.DEC_UTIL]})
    assert fixture.samples("DCGM_FI_DEV_ENC_UTIL") == []
    told = fixture.samples("vcuda_exporter_unsupported")
    labels = {"NodeName": "node-1", "UUID": A}
    assert told == [
        (labels | {"metric": fields.DEC_UTIL}, 1),
        (labels | {"metric": fields.ENC_UTIL}, 1),
    ]
    fewer = tuple(one for one in FIELDS if one.name != fields.ENC_UTIL)
    fixture.now = replace(fixture.now, fields=fewer)
    assert len(fixture.samples("vcuda_exporter_unsupported")) == 1


def test_a_card_that_fails_drops_out_alone() -> None:
    """It is sick, and has no values; the others have theirs."""
    values = {A: {fields.GPU_UTIL: 1.0}, B: {fields.GPU_UTIL: 2.0}}
    fixture = busy(values=values, failures={B: "it hangs"})
    assert fixture.value("DCGM_FI_DEV_GPU_UTIL", UUID=A) == 1
    assert fixture.value("DCGM_FI_DEV_GPU_UTIL", UUID=B) is None
    assert fixture.value("vcuda_card_healthy", UUID=A) == 1
    assert fixture.value("vcuda_card_healthy", UUID=B) == 0
    assert fixture.value("vcuda_card_info", UUID=B, healthy="false") == 1
    assert fixture.value("vcuda_collector_success", group="utilization") == 0
    assert fixture.value("vcuda_collector_success", group="processes") == 1


def test_a_card_that_was_never_asked_is_neither_well_nor_sick() -> None:
    """Before the first round."""
    fixture = ExpositionFixture(snapshot(), pods=[])
    assert fixture.samples("vcuda_card_healthy") == []
    assert fixture.value("vcuda_card_info", UUID=A, healthy="") == 1


def test_health_goes_by_what_was_asked_lately() -> None:
    """By each group's own pace: a failure stands until the group's next round."""
    fixture = busy(values={A: {fields.GPU_UTIL: 1.0}})
    for group, ago_s, healthy in (
        ("faults", 0, 0),
        ("faults", 59, 0),
        ("faults", 76, 1),
        ("environment", 19, 0),
        ("environment", 21, 1),
    ):
        one = Round(group, AT - ago_s, 1.0, {A: CardAnswer(failure="it hung")})
        rounds = {"utilization": fixture.now.rounds["utilization"], group: one}
        fixture.now = replace(fixture.now, rounds=rounds)
        assert fixture.value("vcuda_card_healthy", UUID=A) == healthy, (group, ago_s)


@pytest.mark.parametrize("driverless", [False, True])
def test_a_lost_card_shows_no_value_from_before(*, driverless: bool) -> None:
    """Of a slow group, whose next round comes a minute later; others' are there."""
    seen = {fields.PCIE_REPLAY_COUNTER: 7.0}
    fixture = busy(values={A: seen, B: seen}, at=AT - 40)
    cards = {A: CardAnswer(failure="it is lost"), B: CardAnswer({fields.GPU_UTIL: 1.0})}
    lost = Round("utilization", AT, 0.1, cards)
    if driverless:
        lost = replace(lost, cards={}, failure="no driver")
    fixture.now = replace(
        fixture.now, rounds={**fixture.now.rounds, "utilization": lost}
    )
    found = fixture.samples(fields.PCIE_REPLAY_COUNTER)
    assert [labels["UUID"] for labels, _ in found] == ([] if driverless else [B])


def test_a_card_that_hangs_in_one_group_keeps_the_others_values() -> None:
    """They were read since, or are about of that moment."""
    fixture = busy(values={A: {fields.GPU_UTIL: 1.0}})
    for ago_s in (-10, 0, 59):
        hung = Round("faults", AT - ago_s, 5.0, {A: CardAnswer(failure="it hangs")})
        fixture.now = replace(
            fixture.now, rounds={**fixture.now.rounds, "faults": hung}
        )
        assert fixture.value(fields.GPU_UTIL, UUID=A) == 1
        assert fixture.value("vcuda_card_healthy", UUID=A) == 0


def test_without_a_driver_all_cards_are_sick() -> None:
    """Those that were found while it was there; and the page says why."""
    gone = Round("utilization", AT, 0.1, {}, "no driver")
    fixture = ExpositionFixture(
        replace(snapshot(), rounds={"utilization": gone}, no_cards="no driver"), pods=[]
    )
    assert [value for _, value in fixture.samples("vcuda_card_healthy")] == [0, 0]
    assert fixture.value("vcuda_exporter_trouble", about="cards") == 1
    assert fixture.exposition.troubles()["cards"] == "no driver"


def test_without_any_card_the_exporter_still_tells_of_itself() -> None:
    """A page, and valid."""
    fixture = ExpositionFixture(Snapshot(), pods=[])
    assert fixture.value("vcuda_exporter_info", NodeName="node-1", version="0.1.0") == 1
    assert not re.search(r"^(DCGM|vcuda_card)", fixture.text(), re.MULTILINE)


def test_the_last_xid_is_sticky_and_each_is_counted() -> None:
    """0 for none so far; those that alerts ask about are there before they happen."""
    tally = XidTally(79, {79: 2, 999: 1})
    fixture = busy(xids={A: tally, B: XidTally()})
    assert fixture.value("DCGM_FI_DEV_XID_ERRORS", UUID=A, err_code="79") == 79
    assert fixture.value("DCGM_FI_DEV_XID_ERRORS", UUID=B, err_code="0") == 0
    assert fixture.value("vcuda_xid_errors_total", UUID=A, xid="79") == 2
    assert fixture.value("vcuda_xid_errors_total", UUID=A, xid="999") == 1
    assert fixture.value("vcuda_xid_errors_total", UUID=B, xid="79") == 0
    assert fixture.value("vcuda_xid_errors_total", UUID=B, xid="999") is None


def test_a_card_that_reports_no_faults_has_no_zero() -> None:
    """It said so, or was not asked: before the first round, or where that is off."""
    values: dict[Any, Any] = {A: {fields.PCIE_REPLAY_COUNTER: 0.0}}
    mute = {A: [fields.XID_ERRORS]}
    for now in (
        snapshot(values=values, unsupported=mute),
        snapshot(values=values),
        snapshot(),
        snapshot(groups=DEFAULT - {fields.FAULTS}),
    ):
        fixture = ExpositionFixture(now, pods=[])
        assert fixture.samples("DCGM_FI_DEV_XID_ERRORS") == []
        assert fixture.samples("vcuda_xid_errors_total") == []


def test_what_nobody_accounts_for_is_in_bytes() -> None:
    """In use less what processes hold."""
    fixture = busy(values={A: {fields.FB_USED: 600.0}})
    name = "vcuda_card_unattributed_memory_bytes"
    assert fixture.value(name, UUID=A) == 88 * 2**20


def test_how_the_work_of_processes_is_known() -> None:
    """One series a card."""
    round_ = processes({A: [use(1, 5, None)]}, {1: owner("a")}, source=BY_CARD)
    now = snapshot(round_=round_, values={A: {fields.GPU_UTIL: 9.0}})
    fixture = ExpositionFixture(now, pods=[held("a")])
    found = fixture.samples("vcuda_sm_util_source")
    assert [(its["gpu"], its["source"]) for its, _ in found] == [
        ("0", "card"),
        ("1", "none"),
    ]


def test_pods_that_lie_elsewhere_than_planned() -> None:
    """Counted, and named, by who says so."""
    moved = held("a", on=A)
    actual = encode_placement(placement("a", B, 8, node=NODE), WRITTEN)
    moved["metadata"]["annotations"][names.ACTUAL] = actual
    lied = KubeletRound(AT, 0.1, 3, (("default", "b"),))
    fixture = ExpositionFixture(snapshot(), pods=[moved, held("b")], kubelet=lied)
    found = fixture.samples("vcuda_placement_disagreements")
    assert {its["what"]: value for its, value in found} == {"actual": 1, "kubelet": 1}
    misplaced = fixture.samples("vcuda_pod_misplaced")
    assert {(its["what"], its["PodName"]) for its, _ in misplaced} == {
        ("actual", "a"),
        ("kubelet", "b"),
    }


def test_a_kubelet_that_does_not_tell() -> None:
    """Is a trouble, and no agreement; one that agrees is 0."""
    silent = KubeletRound(AT, 0.1, 0, (), "kubelet does not tell")
    fixture = ExpositionFixture(snapshot(), pods=[held("a")], kubelet=silent)
    assert fixture.value("vcuda_placement_disagreements", what="kubelet") is None
    assert fixture.value("vcuda_exporter_trouble", about="kubelet") == 1
    assert fixture.value("vcuda_collector_success", group="kubelet") == 0
    fixture.kubelet = KubeletRound(AT, 0.1, 1)
    assert fixture.value("vcuda_placement_disagreements", what="kubelet") == 0
    assert fixture.value("vcuda_exporter_trouble", about="kubelet") is None


def test_a_broken_file_of_metrics_is_told() -> None:
    """By its own metric, too."""
    assert busy().value("vcuda_exporter_config_ok") == 1
    fixture = busy(troubles={"config": "line 3 is malformed"})
    assert fixture.value("vcuda_exporter_config_ok") == 0
    assert fixture.value("vcuda_exporter_trouble", about="config") == 1


def test_how_rounds_went() -> None:
    """Of groups that are on."""
    fixture = busy(values={A: {fields.GPU_UTIL: 1.0}})
    assert fixture.value("vcuda_collect_duration_seconds", group="utilization") == 0.02
    assert fixture.value("vcuda_collect_timestamp_seconds", group="processes") == AT
    fixture.now = replace(fixture.now, groups=frozenset({fields.PROCESSES}))
    assert fixture.value("vcuda_collect_timestamp_seconds", group="utilization") is None
