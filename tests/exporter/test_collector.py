"""The page of metrics: its series, their labels, and what is not there."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from exporter import catalog as own
from exporter.collector import Exposition, Site
from exporter.held import NodeLimits
from exporter.kubelet_check import KubeletRound
from exporter.owners.owner_pods import NO_POD
from exporter.run import WatchedPods
from exporter.selection import parse as parse_fields
from exporter.snapshot import Round, TelemetrySnapshot, XidTally
from exporter.telemetry import fields
from exporter.telemetry.base import CardAnswer, ProcessesAnswer
from exporter.telemetry.fields import FIELDS
from exporter.usage import OveruseTally, UsageBook, UseKey
from gpushare.cards.source import FoundCards, MigInstance
from gpushare.cards.xids import CARD_XIDS, PROGRAM_XIDS
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpushare.kubelet.limit_files import InnerPid
from tests.builders import AT as WRITTEN
from tests.builders import page, placement
from tests.deviceplugin.node_fixture import NODE, found_card
from tests.exporter.exporter_data import (
    ALL,
    AT,
    BLIND,
    BY_CARD,
    DEFAULT,
    A,
    B,
    held,
    limited,
    owner,
    processes,
    snapshot,
    use,
)
from tests.testbed.prometheus import Promtool

UTIL, SM = fields.GPU_UTIL, own.SM_UTIL.name
ALLOCATED, OVER = own.MEM_ALLOCATED.name, own.OVER_SHARE.name
TROUBLE, HEALTHY = own.TROUBLE.name, own.CARD_HEALTHY.name
SUCCESS, TIMESTAMP = own.SUCCESS.name, own.TIMESTAMP.name
HANGS = CardAnswer(failure="it hangs")
OF_SHARED_CARDS = (
    own.DEV_FB_TOTAL,
    own.FB_ALLOCATED,
    own.ALLOCATE_MODE,
    own.CARD_ALLOCATED,
    own.CARD_UNATTRIBUTED,
    own.OVER_SHARE,
)


SITE = Site("node-1", "host-1", version="0.1.0")
CARD_A = {
    "gpu": "0",
    "UUID": A,
    "pci_bus_id": "",
    "device": "nvidia0",
    "modelName": "Tesla P4",
    "hostname": "host-1",
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
class ExpositionFixture:
    """An exposition over a moment that a test sets."""

    now: TelemetrySnapshot
    site: Site = SITE
    pods: list[Json] | None = None
    kubelet: KubeletRound | None = None
    tally: OveruseTally = field(default_factory=OveruseTally)
    heard_s: float | None = None
    delays: Mapping[UseKey, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watched = WatchedPods()
        if self.pods is not None:
            self.watched.replace(iter([page(*self.pods)]))
        book = UsageBook(lambda: self.now, self.watched.current)
        self.exposition = Exposition(
            self.site,
            lambda: self.now,
            book,
            overuse=lambda: self.tally,
            kubelet=lambda: self.kubelet,
            heard=lambda: self.heard_s,
            delays=lambda: self.delays,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.exposition)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """All samples of exactly this name, as Prometheus reads them."""
        return [
            (sample.labels, sample.value)
            for family in parse(self.text())
            for sample in family.samples
            if sample.name == name
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The one sample with these labels among its own; None for none."""
        found = [
            value for its, value in self.samples(name) if labels.items() <= its.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def by(self, name: str, label: str = "PodName") -> dict[str, float]:
        """The values by a label, of which no two samples have the same."""
        told = [(its[label], value) for its, value in self.samples(name)]
        assert len(told) == len(dict(told)), told
        return dict(told)


def busy(*pods: Json, **how: Any) -> ExpositionFixture:
    """Pod ``a`` works on the first card."""
    round_ = processes({A: [use(1, 512, 23)]}, {1: owner("a")})
    made = snapshot(round_=round_, **how)
    return ExpositionFixture(made, pods=list(pods or [held("a")]))


def moved(name: str) -> Json:
    """A pod that lies on card B and was planned for card A."""
    pod = held(name, on=A)
    actual = encode_placement(placement(name, B, 8, node=NODE), WRITTEN)
    pod["metadata"]["annotations"][names.ACTUAL] = actual
    return pod


def full() -> ExpositionFixture:
    """A node where every metric there is has a value."""
    every = {
        field.name: float(number)
        for number, field in enumerate(FIELDS)
        if field.name not in (fields.XID_ERRORS, fields.MEMORY_TEMP)
    }
    round_ = processes(
        {A: [use(1, 3000, 20), use(2, 9, 1)]},
        {1: owner("a"), 2: NO_POD},
        limits=limited("a", {InnerPid(1, 1): 3000}, {1: InnerPid(1, 1)}),
    )
    now = snapshot(
        round_=round_,
        values={A: every | {fields.MEMORY_TEMP: 5.0}, B: every},
        unsupported={B: [fields.MEMORY_TEMP]},
        groups=ALL,
        xids={A: XidTally(79, {79: 1})},
        troubles={"config": 'line 3 says "what\\ever"\nand more'},
    )
    return ExpositionFixture(
        now,
        pods=[held("a", 8, 50), moved("b")],
        kubelet=KubeletRound(AT, 0.1, 2, (("default", "a"),)),
        tally=OveruseTally(2, 1),
        delays={(A, "uid-a", "main"): 0.01},
    )


def test_a_full_page_is_as_the_two_tables_say() -> None:
    """No metric more or less; no series twice, because Prometheus drops one of them."""
    told = [sample for family in parse(full().text()) for sample in family.samples]
    metrics = (*FIELDS, *own.OWN)
    assert {sample.name for sample in told} == {metric.name for metric in metrics}
    series = [(sample.name, *sorted(sample.labels.items())) for sample in told]
    assert len(series) == len(set(series))
    base = {"card": set(CARD_A), "container": set(MAIN_OF_A), "node": {"NodeName"}}
    for metric in own.OWN:
        labels = {frozenset(each.labels) for each in told if each.name == metric.name}
        wanted = frozenset(base[metric.about] | set(metric.labels))
        assert labels == {wanted}, metric.name


def test_promtool_has_nothing_to_say(promtool: Promtool) -> None:
    """But of the labels in camelCase, and of one name: both are dcgm-exporter's."""
    name = fields.PCIE_REPLAY_COUNTER
    known = f"{name} metric name should not include type 'counter'"
    assert promtool.complaints(full().text()) == [known]
    empty = ExpositionFixture(TelemetrySnapshot(), pods=[])
    assert promtool.complaints(empty.text()) == []
    assert empty.value("vcuda_exporter_info", NodeName="node-1", version="0.1.0") == 1
    assert not re.search(r"^(DCGM|vcuda_card)", empty.text(), re.MULTILINE)


def test_counters_keep_their_exact_names() -> None:
    """Nothing is appended to dcgm-exporter's, in either format."""
    name = fields.TOTAL_ENERGY_CONSUMPTION
    fixture = busy(values={A: {name: 5.0}})
    assert f"# TYPE {name} untyped\n{name}{{" in fixture.text()
    families = parse_open_metrics(open_metrics(fixture.registry).decode())
    found = {sample.name for family in families for sample in family.samples}
    assert {name, "vcuda_watchdog_reports_total"} <= found
    assert f"{name}_total" not in found


def test_registering_collects_nothing() -> None:
    """A registry that asked would find no page before the first round."""
    assert (
        Exposition(SITE, TelemetrySnapshot, UsageBook(TelemetrySnapshot)).describe()
        == ()
    )


def test_labels_are_dcgm_exporters_and_our_own() -> None:
    """None clashes with Prometheus' own; older dashboards want a large ``Hostname``."""
    fixture = busy(values={A: {UTIL: 20.0}, B: {}})
    assert fixture.samples(UTIL) == [(CARD_A, 20.0)]
    assert (MAIN_OF_A, 23.0) in fixture.samples(SM)
    assert not re.search(r'[{,](pod|namespace|container)="', fixture.text())
    card = replace(found_card(0), bus="00000000:00:04.0", minor=None)
    now = replace(fixture.now, found=FoundCards((card,)))
    fixture = ExpositionFixture(now, replace(SITE, hostname_label="Hostname"), [])
    [(labels, _)] = fixture.samples(UTIL)
    assert (labels["pci_bus_id"], labels["device"]) == ("00000000:00:04.0", "")
    assert labels["Hostname"] == "host-1"
    assert "hostname" not in labels


def test_an_instance_has_dcgm_exporters_labels() -> None:
    """The card's own, and which part it is; ours alone is the instance's UUID.

    Only an instance has more: on the others a label more would make new series.
    """
    fixture = busy(
        values={A: {UTIL: 20.0}, B: {fields.FB_USED: 30.0}},
        unsupported={B: [fields.ENC_UTIL]},
    )
    full, other = fixture.now.cards
    of = MigInstance(CardUUID("GPU-9"), 7, 0, "1g.5gb", 3, "A100")
    fixture.now = replace(
        fixture.now, found=FoundCards((full, replace(other, instance=of)))
    )
    assert fixture.samples(UTIL) == [(CARD_A, 20.0)]
    [(labels, _)] = fixture.samples(fields.FB_USED)
    assert (labels["GPU_I_ID"], labels["GPU_I_PROFILE"]) == ("7", "1g.5gb")
    assert [labels[name] for name in ("UUID", "gpu", "modelName", "GPU_I_UUID")] == [
        *("GPU-9", "3", "A100", B)
    ]
    assert not {"GPU_I_ID", "GPU_I_UUID"} & fixture.samples(SM)[0][0].keys()
    [(labels, _)] = fixture.samples(own.UNSUPPORTED.name)
    assert (labels["UUID"], labels["GPU_I_UUID"]) == ("GPU-9", B)


def test_idle_is_zero_and_gone_is_nothing() -> None:
    """So that an autoscaler sees 0 and not ``<unknown>``; the share stays meanwhile."""
    fixture = ExpositionFixture(snapshot(round_=processes({})), pods=[held("a")])
    assert (fixture.by(SM), fixture.by(own.MEM_USED.name)) == ({"a": 0}, {"a": 0})
    failing = processes({A: ProcessesAnswer(failure="it hangs")})
    fixture.now = snapshot(round_=failing)
    for name in (SM, OVER, own.CARD_UNATTRIBUTED.name):
        assert A not in {labels["UUID"] for labels, _ in fixture.samples(name)}, name
    assert fixture.by(ALLOCATED) == {"a": 2048}
    fixture.watched.replace(iter([page()]))
    assert fixture.samples(ALLOCATED) == []


def test_what_a_container_was_allotted() -> None:
    """By 0 any use would be too much, so cores alone have no memory limit."""
    round_ = processes({A: [use(1, 5, 23)]}, {1: owner("a")})
    pods = [held("a", 8, 50), held("b", 4, 0), held("c", 0, 50)]
    fixture = ExpositionFixture(snapshot(round_=round_), pods=pods)
    assert fixture.by(ALLOCATED) == {"a": 2048, "b": 1024}
    assert fixture.by(own.CP_ALLOCATED.name) == {"a": 0.5, "b": 0, "c": 0.5}
    assert fixture.by(own.CORE_LIMIT.name) == {"a": 0.5, "c": 0.5}
    assert fixture.by(own.CORE_USE.name) == {"a": 0.46, "c": 0}


def test_who_is_over_its_share_and_when_it_worked_last() -> None:
    round_ = processes(
        {A: [use(1, 3000, 1), use(2, 100, 0), use(3, None, None), use(4, 100, 5)]},
        {1: owner("a"), 2: owner("b"), 3: owner("c"), 4: NO_POD},
    )
    pods = [held(name) for name in "abc"]
    fixture = ExpositionFixture(snapshot(round_=round_), pods=pods)
    assert fixture.by(OVER) == {"a": 1, "b": 0}
    assert fixture.by(own.LAST_BUSY.name) == {"a": AT, "b": AT}
    [labels] = [its for its, value in fixture.samples(SM) if value == 5]
    empty = ("NamespaceName", "PodName", "ContainerName", "AllocateMode")
    assert [labels[label] for label in empty] == [""] * 4


def test_who_is_held_by_its_tier() -> None:
    """Unknown is no sample: without a tier, without a process, and while it is blind.

    With a whole card there is nothing to hold it to.
    """
    pids = {number: InnerPid(number, 1) for number in (1, 2, 3)}
    limits = [limited(pod, {pids[1]: 300}, pids) for pod in "abcw"]
    every = {key: one for made in limits for key, one in made.containers.items()}
    round_ = processes(
        {A: [use(1, 500), use(2, 500), use(4, 500)], B: [use(3, 9000)]},
        {1: owner("a"), 2: owner("b"), 3: owner("w"), 4: owner("d")},
        limits=NodeLimits(every, pids),
    )
    whole = held("w", on=B, charged=(29, 100))
    fixture = ExpositionFixture(
        snapshot(round_=round_), pods=[*map(held, "abcd"), whole]
    )
    assert fixture.by(own.HELD.name) == {"a": 1, "b": 0}
    [its] = [its for its, _ in fixture.samples(own.HELD.name) if its["PodName"] == "a"]
    assert its == MAIN_OF_A
    for hidden in (
        snapshot(round_=replace(round_, failure="it hangs", cards={})),
        snapshot(round_=round_, troubles=BLIND),
    ):
        fixture.now = hidden
        assert fixture.by(own.HELD.name) == {}


def test_how_long_launches_wait() -> None:
    """Of those that were told, and 0 is an answer, too."""
    fixture = ExpositionFixture(
        snapshot(round_=processes({})), pods=[held(name) for name in "abc"]
    )
    assert fixture.by(own.LAUNCH_DELAY.name) == {}
    fixture.delays = {(A, "uid-a", "main"): 0.0125, (A, "uid-b", "main"): 0.0}
    assert fixture.by(own.LAUNCH_DELAY.name) == {"a": 0.0125, "b": 0}


def bound(name: str, hour: int, tier: str = "", **how: Any) -> Json:
    """A pod that was bound at this hour, with the tier that the plugin notes."""
    pod = held(name, **how)
    pod["metadata"]["annotations"] |= {names.ISOLATION: tier} if tier else {}
    since = {"lastTransitionTime": f"2026-01-02T{hour:02}:00:00Z"}
    scheduled = {"type": "PodScheduled", "status": "True", **since}
    pod["status"]["conditions"] = [scheduled]
    return pod


def test_who_came_before_the_tier_is_not_held() -> None:
    """While a later pod has one. What was let start since has it, or none is chosen."""
    pods = [
        bound("early", 3),
        bound("idle", 3),
        bound("whole", 3, on=B, charged=(29, 100)),
        bound("tier", 4, "driver"),
        bound("late", 5),
    ]
    ones = ["early", "tier", "late"]
    round_ = processes(
        {A: [use(pid, 100) for pid in range(3)], B: [use(4, 100)]},
        {**{pid: owner(one) for pid, one in enumerate(ones)}, 4: owner("whole")},
    )
    fixture = ExpositionFixture(snapshot(round_=round_), pods=pods)
    assert fixture.by(own.HELD.name) == {"early": 0}
    fixture.watched.replace(iter([page(*pods[:3], pods[4])]))
    assert fixture.by(own.HELD.name) == {}


def test_how_cards_are_allotted() -> None:
    whole = held("w", on=B, containers={"x": (0, 100)}, charged=(29, 100))
    cards = [found_card(number) for number in range(3)]
    fixture = ExpositionFixture(snapshot(*cards), pods=[held("a", 8), whole])
    share = 2048 / 7524
    used = {"0": 2048 * 2**20, "1": 29 * 2**28, "2": 0}
    assert fixture.by(own.ALLOCATE_MODE.name, "gpu") == {"0": 2, "1": 1, "2": 0}
    assert fixture.by(own.DEV_FB_TOTAL.name, "gpu")["0"] == 7524
    assert fixture.by(own.CARD_ALLOCATED.name, "gpu") == used
    shares = fixture.by(own.FB_ALLOCATED.name, "gpu")
    assert (shares["0"], shares["2"]) == (share, 0)
    modes = {
        its["PodName"]: its["AllocateMode"] for its, _ in fixture.samples(ALLOCATED)
    }
    assert modes == {"a": "share", "w": "exclusive"}


def test_of_an_integrated_card_nothing_is_allotted() -> None:
    """A Jetson's: who uses it exceeds no share, and its memory is the node's."""
    cards = [found_card(0, integrated=True), found_card(1)]
    values = {A: {fields.FB_USED: 4096.0}, B: {fields.FB_USED: 4096.0}}
    round_ = processes(
        {A: [use(1, 512, 23)], B: [use(2, 256)]}, dict.fromkeys((1, 2), owner("a"))
    )
    pod = held("a", on="GPU-elsewhere")
    fixture = ExpositionFixture(
        snapshot(*cards, round_=round_, values=values), pods=[pod]
    )
    assert fixture.by(own.MEM_USED.name, "UUID") == {A: 512, B: 256}
    for what in OF_SHARED_CARDS:
        assert set(fixture.by(what.name, "UUID")) == {B}, what.name


def test_on_a_card_that_is_only_measured_nobody_is_over_its_share() -> None:
    """An AMD card without an inventory: who uses it could not have asked for it.

    If a placement names it all the same, the device plugin's inventory has it.
    """
    cards = [found_card(0, offered=False), found_card(1)]
    round_ = processes(
        {A: [use(1, 5000), use(2, 5000)], B: [use(3, 5000)]},
        {1: owner("a"), 2: owner("b"), 3: owner("a")},
    )
    pods = [held("a", on="GPU-elsewhere"), held("b", 4)]
    fixture = ExpositionFixture(snapshot(*cards, round_=round_), pods=pods)
    told = {(its["UUID"], its["PodName"]): n for its, n in fixture.samples(OVER)}
    assert told == {(A, "b"): 1, (B, "a"): 1}
    assert fixture.by(own.CARD_ALLOCATED.name, "UUID") == {A: 4 * 2**28, B: 0}


def test_a_field_is_shown_as_the_file_of_fields_says() -> None:
    """By its name of 1.x and by no other; with the file's help."""
    (temperature,) = parse_fields("dcgm_gpu_temp, gauge, My own words.").fields
    now = busy(values={A: {fields.GPU_TEMP: 61.0}}).now
    fixture = ExpositionFixture(replace(now, fields=(temperature,)), pods=[held("a")])
    assert fixture.by("dcgm_gpu_temp", "gpu") == {"0": 61.0}
    assert "# HELP dcgm_gpu_temp My own words." in fixture.text()
    assert fields.GPU_TEMP not in fixture.text()


def test_before_the_pods_are_known_nothing_is_said_of_them() -> None:
    round_ = processes({A: [use(1, 100, 20)]}, {1: owner("a")})
    fixture = ExpositionFixture(snapshot(round_=round_))
    unknown = (own.SM_UTIL, own.FB_ALLOCATED, own.ALLOCATE_MODE, own.DISAGREEMENTS)
    for metric in unknown:
        assert fixture.samples(metric.name) == [], metric.name
    assert fixture.value(TROUBLE, about="pods") == 1
    assert fixture.value(SUCCESS, group="allotment") == 0
    fixture.watched.replace(iter([page()]))
    assert fixture.samples(TROUBLE) == []
    assert fixture.value(SUCCESS, group="allotment") == 1


def test_an_api_server_that_went_silent_is_told() -> None:
    fixture = busy()
    assert fixture.value(TIMESTAMP, group="allotment") is None
    for age_s, silent in ((80.0, False), (91.0, True)):
        fixture.heard_s = age_s
        before = time.time()
        told = fixture.value(TIMESTAMP, group="allotment")
        assert told is not None
        # A page writes fewer digits than there are.
        assert before - age_s - 0.01 <= told <= time.time() - age_s + 0.01
        assert fixture.value(TROUBLE, about="pods") == (1 if silent else None)
        assert fixture.value(SUCCESS, group="allotment") == (not silent)
    assert "shown as they were" in fixture.exposition.troubles()["pods"]
    assert fixture.by(ALLOCATED) == {"a": 2048}
    assert fixture.value(own.DURATION.name, group="allotment") is None


def test_only_what_is_switched_on_is_shown() -> None:
    values = {A: {UTIL: 1.0, fields.MEM_COPY_UTIL: 2.0, fields.FB_USED: 3.0}}
    listed = tuple(field for field in FIELDS if field.name in (UTIL, fields.FB_USED))
    groups = frozenset({fields.UTILIZATION})
    now = snapshot(values=values, groups=groups, fields=listed)
    text = ExpositionFixture(now, pods=[held("a")]).text()
    assert set(re.findall(r"^(DCGM_\w+)", text, re.MULTILINE)) == {UTIL}
    fixture = busy(held("a", 8, 50), groups=frozenset({fields.ALLOTMENT}))
    assert (fixture.by(SM), fixture.by(ALLOCATED)) == ({}, {"a": 2048})
    fixture = busy(held("a", 8, 50), groups=frozenset({fields.PROCESSES}))
    assert (fixture.by(SM), fixture.by(ALLOCATED)) == ({"a": 23}, {})
    assert fixture.by(own.CORE_USE.name) == {}


def test_what_a_card_does_not_have_is_no_sample_and_is_told() -> None:
    values = {A: {UTIL: 1.0}, B: {UTIL: 2.0}}
    fixture = busy(values=values, unsupported={A: [fields.ENC_UTIL, fields.DEC_UTIL]})
    assert fixture.samples(fields.ENC_UTIL) == []
    labels = {"NodeName": "node-1", "UUID": A}
    absent = (fields.DEC_UTIL, fields.ENC_UTIL)
    told = [(labels | {"metric": name}, 1) for name in absent]
    assert fixture.samples(own.UNSUPPORTED.name) == told
    fewer = tuple(field for field in FIELDS if field.name != fields.ENC_UTIL)
    fixture.now = replace(fixture.now, fields=fewer)
    assert fixture.samples(own.UNSUPPORTED.name) == told[:1]


def test_a_card_that_fails_drops_out_alone() -> None:
    values = {A: {UTIL: 1.0}, B: {UTIL: 2.0}}
    fixture = busy(values=values, failures={B: "it hangs"})
    assert fixture.by(UTIL, "UUID") == {A: 1}
    assert fixture.by(HEALTHY, "UUID") == {A: 1, B: 0}
    assert fixture.value(own.CARD_INFO.name, UUID=B, healthy="false") == 1
    assert fixture.value(SUCCESS, group="utilization") == 0
    assert fixture.value(SUCCESS, group="processes") == 1
    fixture = ExpositionFixture(snapshot(), pods=[])
    assert fixture.samples(HEALTHY) == []
    assert fixture.value(own.CARD_INFO.name, UUID=A, healthy="") == 1


def test_health_goes_by_what_was_asked_lately() -> None:
    """By each group's own pace: a failure stands until the group's next round."""
    fixture = busy(values={A: {UTIL: 1.0}})
    for group, ago_s, healthy in (
        ("faults", -10, 0),
        ("faults", 0, 0),
        ("faults", 59, 0),
        ("faults", 76, 1),
        ("environment", 19, 0),
        ("environment", 21, 1),
    ):
        failed = Round(group, AT - ago_s, 1.0, {A: HANGS})
        rounds = {"utilization": fixture.now.rounds["utilization"], group: failed}
        fixture.now = replace(fixture.now, rounds=rounds)
        assert fixture.value(HEALTHY, UUID=A) == healthy, (group, ago_s)
        # Its other groups were read since, or at about that moment.
        assert fixture.value(UTIL, UUID=A) == 1


@pytest.mark.parametrize("driverless", [False, True])
def test_a_lost_card_shows_no_value_from_before(*, driverless: bool) -> None:
    """Of a slow group, whose next round comes a minute later; others' are there."""
    seen = {fields.PCIE_REPLAY_COUNTER: 7.0}
    fixture = busy(values={A: seen, B: seen}, at=AT - 40)
    lost = Round("utilization", AT, 0.1, {A: HANGS, B: CardAnswer({UTIL: 1.0})})
    if driverless:
        lost = replace(lost, cards={}, failure="no driver")
    rounds = {**fixture.now.rounds, "utilization": lost}
    fixture.now = replace(fixture.now, rounds=rounds, no_cards=lost.failure)
    found = fixture.by(fields.PCIE_REPLAY_COUNTER, "UUID")
    assert found == ({} if driverless else {B: 7})
    assert fixture.by(HEALTHY, "UUID") == {A: 0, B: 0 if driverless else 1}
    assert fixture.value(TROUBLE, about="cards") == (1 if driverless else None)
    assert fixture.exposition.troubles().get("cards", "") == lost.failure


def test_the_last_xid_is_sticky_and_each_is_counted() -> None:
    """0 for none so far; those that alerts ask about are there before they happen."""
    fixture = busy(xids={A: XidTally(79, {79: 2, 999: 1}), B: XidTally()})
    assert fixture.by(fields.XID_ERRORS, "err_code") == {"79": 79, "0": 0}
    counts = {
        (its["UUID"], its["xid"]): value
        for its, value in fixture.samples(own.XIDS.name)
    }
    wanted = [counts.get(key) for key in ((A, "79"), (A, "999"), (B, "79"), (B, "999"))]
    assert wanted == [2, 1, 0, None]
    of_b = {int(xid) for uuid, xid in counts if uuid == B}
    assert of_b == {*PROGRAM_XIDS, *CARD_XIDS}


def test_a_card_that_reports_no_faults_has_no_zero() -> None:
    """It said so, or was not asked: before the first round, or where that is off."""
    values: dict[Any, Any] = {A: {fields.PCIE_REPLAY_COUNTER: 0.0}}
    for now in (
        snapshot(values=values, unsupported={A: [fields.XID_ERRORS]}),
        snapshot(values=values),
        snapshot(),
        snapshot(groups=DEFAULT - {fields.FAULTS}),
    ):
        fixture = ExpositionFixture(now, pods=[])
        assert fixture.samples(fields.XID_ERRORS) == []
        assert fixture.samples(own.XIDS.name) == []


def test_what_is_known_of_a_cards_processes() -> None:
    round_ = processes({A: [use(1, 512, None)]}, {1: owner("a")}, source=BY_CARD)
    values = {A: {fields.FB_USED: 600.0, UTIL: 9.0}}
    fixture = ExpositionFixture(
        snapshot(round_=round_, values=values), pods=[held("a")]
    )
    assert fixture.by(own.CARD_UNATTRIBUTED.name, "UUID") == {A: 88 * 2**20}
    sources = [its["source"] for its, _ in fixture.samples(own.SM_SOURCE.name)]
    assert sources == ["card", "none"]


def test_pods_that_lie_elsewhere_than_planned() -> None:
    """Counted, and named, by who says so; a silent kubelet agrees to nothing."""
    lied = KubeletRound(AT, 0.1, 3, (("default", "b"),))
    pods = [moved("a"), held("b")]
    fixture = ExpositionFixture(snapshot(), pods=pods, kubelet=lied)
    assert fixture.by(own.DISAGREEMENTS.name, "what") == {"actual": 1, "kubelet": 1}
    misplaced = fixture.samples(own.MISPLACED.name)
    found = {(its["what"], its["PodName"]) for its, _ in misplaced}
    assert found == {("actual", "a"), ("kubelet", "b")}
    for failure in ("kubelet is silent", ""):
        fixture.kubelet = KubeletRound(AT, 0.1, 0, (), failure)
        told = fixture.value(own.DISAGREEMENTS.name, what="kubelet")
        assert told == (None if failure else 0)
        assert fixture.value(TROUBLE, about="kubelet") == (1 if failure else None)
        assert fixture.value(SUCCESS, group="kubelet") == (not failure)
