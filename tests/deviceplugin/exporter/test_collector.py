"""The page of metrics: which series there are, with which labels."""

import re
from dataclasses import replace

from deviceplugin.cards.source import Found
from deviceplugin.exporter.owners import NO_POD
from deviceplugin.exporter.selection import parse
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import ProcessesAnswer
from tests.builders import page
from tests.deviceplugin.exporter_data import (
    AT,
    A,
    B,
    held,
    owner,
    processes,
    snapshot,
    use,
)
from tests.deviceplugin.exposition_page import (
    CARD_A,
    MAIN_OF_A,
    SITE,
    ExpositionFixture,
    busy,
)
from tests.deviceplugin.node_fixture import found_card


def test_a_cards_labels_are_dcgm_exporters_and_the_nodes() -> None:
    """In every series that is a card's; other words for no bus and no minor number."""
    fixture = busy(values={A: {fields.GPU_UTIL: 20.0}, B: {}})
    assert fixture.samples("DCGM_FI_DEV_GPU_UTIL") == [(CARD_A, 20.0)]
    fixture.now = replace(
        fixture.now,
        found=Found((replace(found_card(0), bus="00000000:00:04.0", minor=None),)),
    )
    [(labels, _)] = fixture.samples("DCGM_FI_DEV_GPU_UTIL")
    assert (labels["pci_bus_id"], labels["device"]) == ("00000000:00:04.0", "")


def test_the_hosts_label_may_be_written_large() -> None:
    """As older dcgm-exporters do; never both."""
    fixture = busy(values={A: {fields.GPU_UTIL: 20.0}})
    fixture = ExpositionFixture(
        fixture.now, replace(SITE, hostname_label="Hostname"), [held("a")]
    )
    [(labels, _)] = fixture.samples("DCGM_FI_DEV_GPU_UTIL")
    assert labels["Hostname"] == "host-1"
    assert "hostname" not in labels


def test_a_containers_labels_are_its_cards_and_its_own() -> None:
    """And none that clashes with Prometheus' own."""
    fixture = busy()
    assert (MAIN_OF_A, 23.0) in fixture.samples("DCGM_CUSTOM_PROCESS_SM_UTIL")
    assert not re.search(r'[{,](pod|namespace|container)="', fixture.text())


def test_one_series_a_card_however_many_share_it() -> None:
    """The adapter sums them over a node."""
    round_ = processes(
        {A: [use(1, 100, 20), use(2, 50, 3)]}, {1: owner("a"), 2: owner("b")}
    )
    values = {A: {fields.FB_USED: 5220.0}, B: {fields.FB_USED: 0.0}}
    pods = [held("a"), held("b"), held("c")]
    fixture = ExpositionFixture(snapshot(round_=round_, values=values), pods=pods)
    found = fixture.samples("DCGM_FI_DEV_FB_USED")
    assert sorted(value for _, value in found) == [0, 5220]
    assert not any("PodName" in labels for labels, _ in found)


def test_one_series_a_container_however_many_processes() -> None:
    """An idle process at its side must not dilute an average."""
    round_ = processes(
        {A: [use(1, 100, 23), use(2, 50, 0)]}, {1: owner("a"), 2: owner("a")}
    )
    fixture = ExpositionFixture(snapshot(round_=round_), pods=[held("a")])
    sm = fixture.samples("DCGM_CUSTOM_PROCESS_SM_UTIL")
    assert [value for _, value in sm] == [23]
    assert fixture.value("DCGM_CUSTOM_PROCESS_MEM_USED", PodName="a") == 150


def test_idle_is_zero_and_gone_is_nothing() -> None:
    """So that an autoscaler sees 0 and not ``<unknown>``."""
    fixture = ExpositionFixture(snapshot(round_=processes({})), pods=[held("a")])
    assert fixture.value("DCGM_CUSTOM_PROCESS_SM_UTIL", PodName="a") == 0
    assert fixture.value("DCGM_CUSTOM_PROCESS_MEM_USED", PodName="a") == 0
    fixture.tenants.replace(iter([page()]))
    assert fixture.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert fixture.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []


def test_unknown_is_nothing_and_what_is_allotted_stays() -> None:
    """A failing card's containers have no use, and still their share."""
    round_ = processes({A: ProcessesAnswer(failure="it hangs")})
    fixture = ExpositionFixture(snapshot(round_=round_), pods=[held("a")])
    assert fixture.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert fixture.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048
    assert fixture.samples("vcuda_container_over_share") == []
    assert fixture.value("vcuda_card_unattributed_memory_bytes", UUID=A) is None


def test_what_a_container_was_allotted() -> None:
    """In the units of the names; a limit only where cores were asked."""
    fixture = ExpositionFixture(snapshot(), pods=[held("a", 8, 50), held("b", 4, 0)])
    assert fixture.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048
    assert fixture.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", PodName="a") == 0.5
    assert fixture.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", PodName="b") == 0
    assert fixture.value("vcuda_container_core_limit_ratio", PodName="a") == 0.5
    assert fixture.value("vcuda_container_core_limit_ratio", PodName="b") is None


def test_who_asked_for_cores_alone_has_no_memory_to_be_measured_by() -> None:
    """By 0 any use would be endlessly too much: rules divide by it."""
    fixture = busy(held("a", 0, 50))
    assert fixture.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") is None
    assert fixture.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED") == 0.5


def test_use_beside_the_cores_asked() -> None:
    """23 % of the card are 46 % of 50 cores; of no cores there is no share."""
    assert busy(held("a", 8, 50)).value("vcuda_container_core_use_ratio") == 0.46
    assert busy(held("a", 8, 0)).value("vcuda_container_core_use_ratio") is None


def test_who_is_over_its_share() -> None:
    """1, else 0; nothing where it cannot be told."""
    round_ = processes(
        {A: [use(1, 3000, 1), use(2, 100, 1), use(3, None, 1)]},
        {1: owner("a"), 2: owner("b"), 3: owner("c")},
    )
    fixture = ExpositionFixture(
        snapshot(round_=round_), pods=[held(one) for one in "abc"]
    )
    found = fixture.samples("vcuda_container_over_share")
    assert [(its["PodName"], value) for its, value in found] == [("a", 1), ("b", 0)]


def test_when_a_container_worked_last() -> None:
    """In seconds since 1970, none for what is no pod's."""
    round_ = processes({A: [use(1, 100, 20), use(2, 5, 5)]}, {1: owner("a"), 2: NO_POD})
    fixture = ExpositionFixture(snapshot(round_=round_), pods=[held("a")])
    [(labels, value)] = fixture.samples("vcuda_container_last_busy_timestamp_seconds")
    assert (labels["PodName"], value) == ("a", AT)


def test_processes_outside_kubernetes_have_empty_names() -> None:
    """Which Prometheus drops; nothing was allotted to them."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: NO_POD})
    fixture = ExpositionFixture(snapshot(round_=round_), pods=[])
    [(labels, value)] = fixture.samples("DCGM_CUSTOM_PROCESS_MEM_USED")
    empty = ("NamespaceName", "PodName", "ContainerName", "AllocateMode")
    assert value == 100
    assert [labels[one] for one in empty] == [""] * 4
    assert fixture.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []
    assert fixture.samples("vcuda_container_over_share") == []


def test_how_cards_are_allotted() -> None:
    """Not at all, to one alone, to several."""
    whole = held("w", on=B, containers={"x": (0, 100)}, charged=(29, 100))
    third = found_card(2)
    fixture = ExpositionFixture(
        snapshot(found_card(0), found_card(1), third), pods=[held("a", 8), whole]
    )
    modes = fixture.samples("DCGM_CUSTOM_ALLOCATE_MODE")
    assert {its["gpu"]: value for its, value in modes} == {"0": 2, "1": 1, "2": 0}
    total = fixture.value("DCGM_CUSTOM_DEV_FB_TOTAL", gpu="0")
    share = fixture.value("DCGM_CUSTOM_DEV_FB_ALLOCATED", gpu="0")
    assert (total, share) == (7524, 2048 / 7524)
    bytes_ = fixture.value("vcuda_card_memory_allocated_bytes", gpu="0")
    assert bytes_ == 2048 * 2**20
    assert fixture.value("DCGM_CUSTOM_DEV_FB_ALLOCATED", gpu="2") == 0
    modes_of = fixture.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED")
    assert {its["PodName"]: its["AllocateMode"] for its, _ in modes_of} == {
        "a": "share",
        "w": "exclusive",
    }


def test_a_field_is_shown_by_its_name_of_1_x() -> None:
    """Where a file of fields calls it so; by no other beside it."""
    (temperature,) = parse("dcgm_gpu_temp, gauge, In C.").fields
    now = busy(values={A: {fields.GPU_TEMP: 61.0}}).now
    fixture = ExpositionFixture(replace(now, fields=(temperature,)), pods=[held("a")])
    assert [value for _, value in fixture.samples("dcgm_gpu_temp")] == [61.0]
    assert fields.GPU_TEMP not in fixture.text()
