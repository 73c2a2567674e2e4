"""The page of metrics: which series there are, when there is none, and its form."""

import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from deviceplugin import fields
from deviceplugin import ownfields as own
from deviceplugin.attribution import NOBODY
from deviceplugin.cards import Found
from deviceplugin.exposition import Exposition
from deviceplugin.fields import FIELDS, Field
from deviceplugin.kubeletsays import KubeletRound
from deviceplugin.page import Site
from deviceplugin.snapshot import Round, Snapshot, XidTally
from deviceplugin.telemetry import CardSays, ProcessesSay
from deviceplugin.tenants import Tenants
from deviceplugin.usagebook import UsageBook
from deviceplugin.watchdog import PatrolTally
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from tests.builders import AT as WRITTEN
from tests.builders import page, placement
from tests.deviceplugin.house import NODE, found_card
from tests.deviceplugin.scene import (
    ALL,
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
from tests.testbed.prometheus import Promtool

SITE = Site("node-1", "host-1", version="0.1.0")
CARD_A = {
    "gpu": "0",
    "UUID": A,
    "pci_bus_id": "",
    "device": "nvidia0",
    "modelName": "Tesla P4",
    "Hostname": "host-1",
    "DCGM_FI_DRIVER_VERSION": "550.54.15",
    "NodeName": "node-1",
}
MAIN_OF_A = CARD_A | {
    "NamespaceName": "default",
    "PodName": "a",
    "ContainerName": "main",
    "AllocateMode": "share",
}


@dataclass
class Desk:
    """An exposition over a moment that a test sets."""

    now: Snapshot
    site: Site = SITE
    pods: list[Json] | None = None
    kubelet: KubeletRound | None = None
    tally: PatrolTally = field(default_factory=PatrolTally)
    follows: bool = True
    heard_s: float | None = None

    def __post_init__(self) -> None:
        self.tenants = Tenants()
        if self.pods is not None:
            self.tenants.replace(iter([page(*self.pods)]))
        book = UsageBook(
            lambda: self.now, self.tenants.current if self.follows else None
        )
        self.exposition = Exposition(
            self.site,
            lambda: self.now,
            book,
            patrolled=lambda: self.tally,
            kubelet=lambda: self.kubelet,
            heard=lambda: self.heard_s,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.exposition)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """All samples of exactly this name, as Prometheus reads them."""
        return [
            (one.labels, one.value)
            for family in parse(self.text())
            for one in family.samples
            if one.name == name
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample with these labels among its own; None for none."""
        found = [
            value for its, value in self.samples(name) if labels.items() <= its.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None


def busy(*pods: Json, **how: Any) -> Desk:
    """Pod ``a`` works on the first card."""
    round_ = processes({A: [use(1, 512, 23)]}, {1: owner("a")})
    made = snapshot(round_=round_, **how)
    return Desk(made, pods=list(pods or [held("a")]))


def test_a_cards_labels_are_dcgm_exporters_and_the_nodes() -> None:
    """In every series that is a card's; other words for no bus and no minor number."""
    desk = busy(values={A: {fields.GPU_UTIL: 20.0}, B: {}})
    assert desk.samples("DCGM_FI_DEV_GPU_UTIL") == [(CARD_A, 20.0)]
    desk.now = replace(
        desk.now,
        found=Found((replace(found_card(0), bus="00000000:00:04.0", minor=None),)),
    )
    [(labels, _)] = desk.samples("DCGM_FI_DEV_GPU_UTIL")
    assert (labels["pci_bus_id"], labels["device"]) == ("00000000:00:04.0", "")


def test_the_hosts_label_may_be_written_small() -> None:
    """As newer dcgm-exporters do; never both."""
    desk = busy(values={A: {fields.GPU_UTIL: 20.0}})
    desk = Desk(desk.now, replace(SITE, hostname_label="hostname"), [held("a")])
    [(labels, _)] = desk.samples("DCGM_FI_DEV_GPU_UTIL")
    assert labels["hostname"] == "host-1"
    assert "Hostname" not in labels


def test_a_containers_labels_are_its_cards_and_its_own() -> None:
    """And none that clashes with Prometheus' own."""
    desk = busy()
    assert (MAIN_OF_A, 23.0) in desk.samples("DCGM_CUSTOM_PROCESS_SM_UTIL")
    assert not re.search(r'[{,](pod|namespace|container)="', desk.text())


def test_one_series_a_card_however_many_share_it() -> None:
    """The adapter sums them over a node."""
    round_ = processes(
        {A: [use(1, 100, 20), use(2, 50, 3)]}, {1: owner("a"), 2: owner("b")}
    )
    values = {A: {fields.FB_USED: 5220.0}, B: {fields.FB_USED: 0.0}}
    pods = [held("a"), held("b"), held("c")]
    desk = Desk(snapshot(round_=round_, values=values), pods=pods)
    found = desk.samples("DCGM_FI_DEV_FB_USED")
    assert sorted(value for _, value in found) == [0, 5220]
    assert not any("PodName" in labels for labels, _ in found)


def test_one_series_a_container_however_many_processes() -> None:
    """An idle process at its side must not dilute an average."""
    round_ = processes(
        {A: [use(1, 100, 23), use(2, 50, 0)]}, {1: owner("a"), 2: owner("a")}
    )
    desk = Desk(snapshot(round_=round_), pods=[held("a")])
    sm = desk.samples("DCGM_CUSTOM_PROCESS_SM_UTIL")
    assert [value for _, value in sm] == [23]
    assert desk.value("DCGM_CUSTOM_PROCESS_MEM_USED", PodName="a") == 150


def test_idle_is_zero_and_gone_is_nothing() -> None:
    """So that an autoscaler sees 0 and not ``<unknown>``."""
    desk = Desk(snapshot(round_=processes({})), pods=[held("a")])
    assert desk.value("DCGM_CUSTOM_PROCESS_SM_UTIL", PodName="a") == 0
    assert desk.value("DCGM_CUSTOM_PROCESS_MEM_USED", PodName="a") == 0
    desk.tenants.replace(iter([page()]))
    assert desk.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert desk.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []


def test_unknown_is_nothing_and_what_is_allotted_stays() -> None:
    """A failing card's containers have no use, and still their share."""
    round_ = processes({A: ProcessesSay(failure="it hangs")})
    desk = Desk(snapshot(round_=round_), pods=[held("a")])
    assert desk.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert desk.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048
    assert desk.samples("vcuda_container_over_share") == []
    assert desk.value("vcuda_card_unattributed_memory_bytes", UUID=A) is None


def test_what_a_container_was_allotted() -> None:
    """In the units of the names; a limit only where cores were asked."""
    desk = Desk(snapshot(), pods=[held("a", 8, 50), held("b", 4, 0)])
    assert desk.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048
    assert desk.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", PodName="a") == 0.5
    assert desk.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", PodName="b") == 0
    assert desk.value("vcuda_container_core_limit_ratio", PodName="a") == 0.5
    assert desk.value("vcuda_container_core_limit_ratio", PodName="b") is None


def test_who_asked_for_cores_alone_has_no_memory_to_be_measured_by() -> None:
    """By 0 any use would be endlessly too much: rules divide by it."""
    desk = busy(held("a", 0, 50))
    assert desk.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") is None
    assert desk.value("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED") == 0.5


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
    desk = Desk(snapshot(round_=round_), pods=[held(one) for one in "abc"])
    found = desk.samples("vcuda_container_over_share")
    assert [(its["PodName"], value) for its, value in found] == [("a", 1), ("b", 0)]


def test_when_a_container_worked_last() -> None:
    """In seconds since 1970, none for what is no pod's."""
    round_ = processes({A: [use(1, 100, 20), use(2, 5, 5)]}, {1: owner("a"), 2: NOBODY})
    desk = Desk(snapshot(round_=round_), pods=[held("a")])
    [(labels, value)] = desk.samples("vcuda_container_last_busy_timestamp_seconds")
    assert (labels["PodName"], value) == ("a", AT)


def test_processes_outside_kubernetes_have_empty_names() -> None:
    """Which Prometheus drops; nothing was allotted to them."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: NOBODY})
    desk = Desk(snapshot(round_=round_), pods=[])
    [(labels, value)] = desk.samples("DCGM_CUSTOM_PROCESS_MEM_USED")
    empty = ("NamespaceName", "PodName", "ContainerName", "AllocateMode")
    assert value == 100
    assert [labels[one] for one in empty] == [""] * 4
    assert desk.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []
    assert desk.samples("vcuda_container_over_share") == []


def test_how_cards_are_allotted() -> None:
    """Not at all, to one alone, to several."""
    whole = held("w", on=B, containers={"x": (0, 100)}, charged=(29, 100))
    third = found_card(2)
    desk = Desk(
        snapshot(found_card(0), found_card(1), third), pods=[held("a", 8), whole]
    )
    modes = desk.samples("DCGM_CUSTOM_ALLOCATE_MODE")
    assert {its["gpu"]: value for its, value in modes} == {"0": 2, "1": 1, "2": 0}
    total = desk.value("DCGM_CUSTOM_DEV_FB_TOTAL", gpu="0")
    share = desk.value("DCGM_CUSTOM_DEV_FB_ALLOCATED", gpu="0")
    assert (total, share) == (7524, 2048 / 7524)
    bytes_ = desk.value("vcuda_card_memory_allocated_bytes", gpu="0")
    assert bytes_ == 2048 * 2**20
    assert desk.value("DCGM_CUSTOM_DEV_FB_ALLOCATED", gpu="2") == 0
    modes_of = desk.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED")
    assert {its["PodName"]: its["AllocateMode"] for its, _ in modes_of} == {
        "a": "share",
        "w": "exclusive",
    }


def test_before_the_pods_are_known_nothing_is_said_of_them() -> None:
    """Neither 0 allotted nor nobody misplaced; the page says what is missing."""
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    desk = Desk(snapshot(round_=round_))
    for name in (
        "DCGM_CUSTOM_PROCESS_SM_UTIL",
        "DCGM_CUSTOM_DEV_FB_ALLOCATED",
        "DCGM_CUSTOM_ALLOCATE_MODE",
        "vcuda_placement_disagreements",
    ):
        assert desk.samples(name) == [], name
    assert desk.value("vcuda_exporter_trouble", about="pods") == 1
    assert desk.value("vcuda_collector_success", group="allotment") == 0
    desk.tenants.replace(iter([page()]))
    assert desk.samples("vcuda_exporter_trouble") == []
    assert desk.value("vcuda_collector_success", group="allotment") == 1


def test_an_api_server_that_went_silent_is_told() -> None:
    """What it said last is shown, and that it is old."""
    desk = busy()
    desk.heard_s = 80.0
    assert desk.samples("vcuda_exporter_trouble") == []
    assert desk.value("vcuda_collector_success", group="allotment") == 1
    desk.heard_s = 91.0
    assert desk.value("vcuda_exporter_trouble", about="pods") == 1
    assert desk.value("vcuda_collector_success", group="allotment") == 0
    assert "shown as they were" in desk.exposition.troubles()["pods"]
    assert desk.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED", PodName="a") == 2048


def test_when_the_api_server_last_spoke() -> None:
    """As of any other group; not before it did."""
    name, about = "vcuda_collect_timestamp_seconds", {"group": "allotment"}
    desk = busy()
    assert desk.value(name, **about) is None
    for age_s in (0.0, 1000.0):
        desk.heard_s = age_s
        before = time.time()
        told = desk.value(name, **about)
        assert told is not None
        # A page writes fewer digits than there are.
        assert before - age_s - 0.01 <= told <= time.time() - age_s + 0.01
    assert desk.value("vcuda_collect_duration_seconds", **about) is None


def test_where_pods_are_not_followed_that_is_no_trouble() -> None:
    """As on the edge: cards alone are shown."""
    desk = Desk(snapshot(values={A: {fields.GPU_UTIL: 1.0}}), follows=False)
    assert desk.value("DCGM_FI_DEV_GPU_UTIL", UUID=A) == 1
    assert desk.samples("vcuda_exporter_trouble") == []
    assert desk.samples("DCGM_CUSTOM_ALLOCATE_MODE") == []


def test_only_what_is_switched_on_is_shown() -> None:
    """By group and by field, whatever was read; help comes with the field."""
    values = {A: {fields.GPU_UTIL: 1.0, fields.MEM_COPY_UTIL: 2.0, fields.FB_USED: 3.0}}
    mine = Field(fields.GPU_UTIL, "gauge", fields.UTILIZATION, "My own words.")
    used = next(one for one in FIELDS if one.name == fields.FB_USED)
    groups = frozenset({fields.UTILIZATION})
    now = snapshot(values=values, groups=groups, fields=(mine, used))
    text = Desk(now, pods=[held("a")]).text()
    assert "# HELP DCGM_FI_DEV_GPU_UTIL My own words." in text
    assert set(re.findall(r"^(DCGM_\w+)", text, re.MULTILINE)) == {fields.GPU_UTIL}


def test_containers_use_goes_with_its_group() -> None:
    """And their allotment with its own."""
    desk = busy(held("a", 8, 50))
    only = frozenset({fields.ALLOTMENT})
    desk.now = replace(desk.now, groups=only, processes=None)
    assert desk.samples("DCGM_CUSTOM_PROCESS_SM_UTIL") == []
    assert desk.value("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == 2048
    desk = busy(held("a", 8, 50), groups=frozenset({fields.PROCESSES}))
    assert desk.value("DCGM_CUSTOM_PROCESS_SM_UTIL") == 23
    assert desk.samples("DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED") == []
    assert desk.samples("vcuda_container_core_use_ratio") == []


def test_what_a_card_does_not_have_is_no_sample_and_is_told() -> None:
    """Once for each metric, and only of metrics that are on."""
    values = {A: {fields.GPU_UTIL: 1.0}, B: {fields.GPU_UTIL: 2.0}}
    desk = busy(values=values, unsupported={A: [fields.ENC_UTIL, fields.DEC_UTIL]})
    assert desk.samples("DCGM_FI_DEV_ENC_UTIL") == []
    told = desk.samples("vcuda_exporter_unsupported")
    labels = {"NodeName": "node-1", "UUID": A}
    assert told == [
        (labels | {"metric": fields.DEC_UTIL}, 1),
        (labels | {"metric": fields.ENC_UTIL}, 1),
    ]
    fewer = tuple(one for one in FIELDS if one.name != fields.ENC_UTIL)
    desk.now = replace(desk.now, fields=fewer)
    assert len(desk.samples("vcuda_exporter_unsupported")) == 1


def test_a_card_that_fails_drops_out_alone() -> None:
    """It is sick, and has no values; the others have theirs."""
    values = {A: {fields.GPU_UTIL: 1.0}, B: {fields.GPU_UTIL: 2.0}}
    desk = busy(values=values, failures={B: "it hangs"})
    assert desk.value("DCGM_FI_DEV_GPU_UTIL", UUID=A) == 1
    assert desk.value("DCGM_FI_DEV_GPU_UTIL", UUID=B) is None
    assert desk.value("vcuda_card_healthy", UUID=A) == 1
    assert desk.value("vcuda_card_healthy", UUID=B) == 0
    assert desk.value("vcuda_card_info", UUID=B, healthy="false") == 1
    assert desk.value("vcuda_collector_success", group="utilization") == 0
    assert desk.value("vcuda_collector_success", group="processes") == 1


def test_a_card_that_was_never_asked_is_neither_well_nor_sick() -> None:
    """Before the first round."""
    desk = Desk(snapshot(), pods=[])
    assert desk.samples("vcuda_card_healthy") == []
    assert desk.value("vcuda_card_info", UUID=A, healthy="") == 1


def test_health_goes_by_what_was_asked_lately() -> None:
    """By each group's own pace: a failure stands until the group's next round."""
    desk = busy(values={A: {fields.GPU_UTIL: 1.0}})
    for group, ago_s, healthy in (
        ("faults", 0, 0),
        ("faults", 59, 0),
        ("faults", 76, 1),
        ("environment", 19, 0),
        ("environment", 21, 1),
    ):
        one = Round(group, AT - ago_s, 1.0, {A: CardSays(failure="it hung")})
        rounds = {"utilization": desk.now.rounds["utilization"], group: one}
        desk.now = replace(desk.now, rounds=rounds)
        assert desk.value("vcuda_card_healthy", UUID=A) == healthy, (group, ago_s)


@pytest.mark.parametrize("driverless", [False, True])
def test_a_lost_card_shows_no_value_from_before(*, driverless: bool) -> None:
    """Of a slow group, whose next round comes a minute later; others' are there."""
    seen = {fields.PCIE_REPLAY_COUNTER: 7.0}
    desk = busy(values={A: seen, B: seen}, at=AT - 40)
    cards = {A: CardSays(failure="it is lost"), B: CardSays({fields.GPU_UTIL: 1.0})}
    lost = Round("utilization", AT, 0.1, cards)
    if driverless:
        lost = replace(lost, cards={}, failure="no driver")
    desk.now = replace(desk.now, rounds={**desk.now.rounds, "utilization": lost})
    found = desk.samples(fields.PCIE_REPLAY_COUNTER)
    assert [labels["UUID"] for labels, _ in found] == ([] if driverless else [B])


def test_a_card_that_hangs_in_one_group_keeps_the_others_values() -> None:
    """They were read since, or are about of that moment."""
    desk = busy(values={A: {fields.GPU_UTIL: 1.0}})
    for ago_s in (-10, 0, 59):
        hung = Round("faults", AT - ago_s, 5.0, {A: CardSays(failure="it hangs")})
        desk.now = replace(desk.now, rounds={**desk.now.rounds, "faults": hung})
        assert desk.value(fields.GPU_UTIL, UUID=A) == 1
        assert desk.value("vcuda_card_healthy", UUID=A) == 0


def test_without_a_driver_all_cards_are_sick() -> None:
    """Those that were found while it was there; and the page says why."""
    gone = Round("utilization", AT, 0.1, {}, "no driver")
    desk = Desk(
        replace(snapshot(), rounds={"utilization": gone}, no_cards="no driver"), pods=[]
    )
    assert [value for _, value in desk.samples("vcuda_card_healthy")] == [0, 0]
    assert desk.value("vcuda_exporter_trouble", about="cards") == 1
    assert desk.exposition.troubles()["cards"] == "no driver"


def test_without_any_card_the_exporter_still_tells_of_itself() -> None:
    """A page, and valid."""
    desk = Desk(Snapshot(), pods=[])
    assert desk.value("vcuda_exporter_info", NodeName="node-1", version="0.1.0") == 1
    assert not re.search(r"^(DCGM|vcuda_card)", desk.text(), re.MULTILINE)


def test_the_last_xid_is_sticky_and_each_is_counted() -> None:
    """0 for none so far; those that alerts ask about are there before they happen."""
    tally = XidTally(79, {79: 2, 999: 1})
    desk = busy(xids={A: tally, B: XidTally()})
    assert desk.value("DCGM_FI_DEV_XID_ERRORS", UUID=A) == 79
    assert desk.value("DCGM_FI_DEV_XID_ERRORS", UUID=B) == 0
    assert desk.value("vcuda_xid_errors_total", UUID=A, xid="79") == 2
    assert desk.value("vcuda_xid_errors_total", UUID=A, xid="999") == 1
    assert desk.value("vcuda_xid_errors_total", UUID=B, xid="79") == 0
    assert desk.value("vcuda_xid_errors_total", UUID=B, xid="999") is None


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
        desk = Desk(now, pods=[])
        assert desk.samples("DCGM_FI_DEV_XID_ERRORS") == []
        assert desk.samples("vcuda_xid_errors_total") == []


def test_counters_keep_their_exact_names() -> None:
    """Nothing is appended to dcgm-exporter's, in either format."""
    name = fields.TOTAL_ENERGY_CONSUMPTION
    desk = busy(values={A: {name: 5.0}})
    text = desk.text()
    assert f"# TYPE {name} untyped\n{name}{{" in text
    families = parse_open_metrics(open_metrics(desk.registry).decode())
    found = [one.name for family in families for one in family.samples]
    assert name in found
    assert f"{name}_total" not in found
    assert "vcuda_watchdog_reports_total" in found


def test_what_nobody_accounts_for_is_in_bytes() -> None:
    """In use less what processes hold."""
    desk = busy(values={A: {fields.FB_USED: 600.0}})
    name = "vcuda_card_unattributed_memory_bytes"
    assert desk.value(name, UUID=A) == 88 * 2**20


def test_how_the_work_of_processes_is_known() -> None:
    """One series a card."""
    round_ = processes({A: [use(1, 5, None)]}, {1: owner("a")}, source=BY_CARD)
    now = snapshot(round_=round_, values={A: {fields.GPU_UTIL: 9.0}})
    desk = Desk(now, pods=[held("a")])
    found = desk.samples("vcuda_sm_util_source")
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
    desk = Desk(snapshot(), pods=[moved, held("b")], kubelet=lied)
    found = desk.samples("vcuda_placement_disagreements")
    assert {its["what"]: value for its, value in found} == {"actual": 1, "kubelet": 1}
    misplaced = desk.samples("vcuda_pod_misplaced")
    assert {(its["what"], its["PodName"]) for its, _ in misplaced} == {
        ("actual", "a"),
        ("kubelet", "b"),
    }


def test_a_kubelet_that_does_not_tell() -> None:
    """Is a trouble, and no agreement; one that agrees is 0."""
    silent = KubeletRound(AT, 0.1, 0, (), "kubelet does not tell")
    desk = Desk(snapshot(), pods=[held("a")], kubelet=silent)
    assert desk.value("vcuda_placement_disagreements", what="kubelet") is None
    assert desk.value("vcuda_exporter_trouble", about="kubelet") == 1
    assert desk.value("vcuda_collector_success", group="kubelet") == 0
    desk.kubelet = KubeletRound(AT, 0.1, 1)
    assert desk.value("vcuda_placement_disagreements", what="kubelet") == 0
    assert desk.value("vcuda_exporter_trouble", about="kubelet") is None


def test_a_broken_file_of_metrics_is_told() -> None:
    """By its own metric, too."""
    assert busy().value("vcuda_exporter_config_ok") == 1
    desk = busy(troubles={"config": "line 3 is malformed"})
    assert desk.value("vcuda_exporter_config_ok") == 0
    assert desk.value("vcuda_exporter_trouble", about="config") == 1


def test_how_rounds_went() -> None:
    """Of groups that are on."""
    desk = busy(values={A: {fields.GPU_UTIL: 1.0}})
    assert desk.value("vcuda_collect_duration_seconds", group="utilization") == 0.02
    assert desk.value("vcuda_collect_timestamp_seconds", group="processes") == AT
    desk.now = replace(desk.now, groups=frozenset({fields.PROCESSES}))
    assert desk.value("vcuda_collect_timestamp_seconds", group="utilization") is None


def test_registering_collects_nothing() -> None:
    """A registry that asked would find no page before the first round."""
    calls = []

    def read() -> Snapshot:
        calls.append(1)
        return Snapshot()

    registry = CollectorRegistry()
    registry.register(Exposition(SITE, read, UsageBook(read)))
    assert calls == []
    generate_latest(registry)
    assert calls


def full() -> Desk:
    """A node where every metric there is has a value."""
    every = {
        one.name: float(number)
        for number, one in enumerate(FIELDS)
        if one.name not in (fields.XID_ERRORS, fields.MEMORY_TEMP)
    }
    round_ = processes(
        {A: [use(1, 3000, 20), use(2, 9, 1)]}, {1: owner("a"), 2: NOBODY}
    )
    moved = held("b")
    actual = encode_placement(placement("b", B, 8, node=NODE), WRITTEN)
    moved["metadata"]["annotations"][names.ACTUAL] = actual
    now = snapshot(
        round_=round_,
        values={A: every | {fields.MEMORY_TEMP: 5.0}, B: every},
        unsupported={B: [fields.MEMORY_TEMP]},
        groups=ALL,
        xids={A: XidTally(79, {79: 1})},
        troubles={"config": 'line 3 says "what\\ever"\nand more'},
    )
    return Desk(
        now,
        pods=[held("a", 8, 50), moved],
        kubelet=KubeletRound(AT, 0.1, 2, (("default", "a"),)),
        tally=PatrolTally(2, 1),
    )


def test_a_full_page_has_every_metric_of_both_tables() -> None:
    """And none that is in neither."""
    found = {one.name for family in parse(full().text()) for one in family.samples}
    assert found == {one.name for one in (*FIELDS, *own.OWN)}


def test_no_series_comes_twice() -> None:
    """Prometheus would throw away one of them."""
    samples = [
        (one.name, tuple(sorted(one.labels.items())))
        for family in parse(full().text())
        for one in family.samples
    ]
    assert len(samples) == len(set(samples))


def test_promtool_has_nothing_to_say(promtool: Promtool) -> None:
    """But of the labels in camelCase, and of one name: both are dcgm-exporter's."""
    name = fields.PCIE_REPLAY_COUNTER
    known = f"{name} metric name should not include type 'counter'"
    assert promtool.complaints(full().text()) == [known]
    assert promtool.complaints(Desk(Snapshot(), pods=[]).text()) == []


@pytest.mark.parametrize("one", own.OWN, ids=lambda one: one.name)
def test_own_metrics_have_the_labels_that_the_table_says(one: own.OwnField) -> None:
    """Those of the card, of the container or of the node, and its own."""
    base = {
        "card": set(CARD_A),
        "container": set(MAIN_OF_A),
        "node": {"NodeName"},
    }[one.about]
    found = full().samples(one.name)
    assert found
    assert {frozenset(labels) for labels, _ in found} == {
        frozenset(base | set(one.labels))
    }
