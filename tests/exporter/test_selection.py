"""Which groups and fields are on, and the file of fields."""

from dataclasses import replace

import pytest

from exporter.selection import BadFieldFile, Flags, choose, parse
from exporter.telemetry import fields as f
from exporter.telemetry.fields import FIELDS, GPU_TEMP, GPU_UTIL, GROUPS, Field

SLOW = {f.RETIRED, f.PCIE, f.PROFILING}
NOBODY_ASKED = Flags()
EVERY = frozenset(group.name for group in GROUPS)


def on(*groups: str) -> Flags:
    return Flags(on=frozenset(groups))


def off(*groups: str) -> Flags:
    return Flags(off=frozenset(groups))


def listed(*names: str) -> list[Field]:
    return [field for field in FIELDS if field.name in names]


def shown(chosen_by: Flags, file: list[Field] | None = None) -> set[str]:
    return {field.name for field in choose(chosen_by, file).fields}


def fields_of(*groups: str) -> set[str]:
    return {field.name for field in FIELDS if field.group in groups}


def test_all_but_the_slow_groups_are_on_by_default() -> None:
    assert choose(NOBODY_ASKED).groups == EVERY - SLOW
    assert shown(NOBODY_ASKED) == fields_of(*EVERY - SLOW)
    nothing = choose(off(*EVERY))
    assert (nothing.groups, nothing.fields, nothing.read) == (frozenset(), (), {})


@pytest.mark.parametrize("group", sorted(EVERY))
def test_each_group_has_a_flag_both_ways(group: str) -> None:
    with_it, without = choose(on(group)), choose(off(group))
    assert with_it.groups - without.groups == {group}
    assert with_it.groups - {group} == without.groups
    assert shown(on(group)) - shown(off(group)) == fields_of(group)
    assert sorted(with_it.read.get(group, ())) == sorted(fields_of(group))


def test_a_file_governs_the_fields_of_cards() -> None:
    """Of faults alone the group stays: its round says which cards report any."""
    chosen = choose(NOBODY_ASKED, listed(GPU_TEMP, GPU_UTIL, f.SM_ACTIVE))
    assert [field.name for field in chosen.fields] == [GPU_UTIL, GPU_TEMP, f.SM_ACTIVE]
    assert {f.PROCESSES, f.ALLOTMENT, f.KUBELET, f.PROFILING} < chosen.groups
    assert chosen.read[f.ENVIRONMENT] == (GPU_TEMP,)
    assert chosen.read[f.PROFILING] == (f.SM_ACTIVE,)
    assert f.FAULTS not in chosen.groups
    faults = choose(NOBODY_ASKED, listed(f.XID_ERRORS)).read[f.FAULTS]
    assert faults == (f.XID_ERRORS,)


def test_flags_win_over_the_file() -> None:
    """On: all fields, whatever the file lists; off: none. The file's help is kept."""
    file = listed(GPU_TEMP, f.SM_ACTIVE)
    assert shown(on(f.ENVIRONMENT), file) == fields_of(f.ENVIRONMENT) | {f.SM_ACTIVE}
    assert shown(off(f.PROFILING), file) == {GPU_TEMP}
    (own,) = listed(f.POWER_USAGE)
    mine = replace(own, help="Watts", kind="counter")
    for given in (NOBODY_ASKED, on(f.ENVIRONMENT)):
        chosen = choose(given, [mine])
        assert mine in chosen.fields
        assert own not in chosen.fields


def test_what_is_read_whatever_is_shown() -> None:
    """Memory for the edge agent; the card's utilization for one that is alone on it."""
    file = listed(GPU_TEMP)
    chosen = choose(NOBODY_ASKED, file)
    assert chosen.read[f.MEMORY] == (f.FB_USED, f.FB_TOTAL)
    assert chosen.read[f.UTILIZATION] == (GPU_UTIL,)
    assert {f.MEMORY, f.UTILIZATION} < chosen.groups
    assert f.MEMORY not in choose(off(f.MEMORY), file).read
    assert f.UTILIZATION not in choose(off(f.PROCESSES), file).groups
    assert f.UTILIZATION not in choose(off(f.UTILIZATION), file).groups


DCGM_EXPORTERS = """\
# Format
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy since boot (in mJ).
# DCGM_FI_PROF_PCIE_TX_BYTES,  counter, Total number of bytes transmitted.

DCGM_FI_DEV_FAN_SPEED, gauge, Fan speed (in %).
# Static configuration information, as labels
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""


def test_dcgm_exporters_own_file_is_read() -> None:
    read = parse(DCGM_EXPORTERS)
    energy = f.TOTAL_ENERGY_CONSUMPTION
    assert [(field.name, field.kind, field.help) for field in read.fields] == [
        (f.SM_CLOCK, "gauge", "SM clock frequency (in MHz)."),
        (GPU_TEMP, "gauge", "GPU temperature (in C)."),
        (energy, "counter", "Energy since boot (in mJ)."),
    ]
    assert read.unknown == ("DCGM_FI_DEV_FAN_SPEED",)


def test_a_label_that_is_not_ours_is_unknown() -> None:
    """And the driver's version is a label only."""
    rows = "DCGM_FI_DEV_BRAND, label, x\nDCGM_FI_DRIVER_VERSION, gauge, x\n"
    read = parse(f"DCGM_FI_DEV_GPU_TEMP, gauge, x\n{rows}")
    assert read.unknown == ("DCGM_FI_DEV_BRAND", "DCGM_FI_DRIVER_VERSION")


OLD = {
    "dcgm_sm_clock": "DEV_SM_CLOCK",
    "dcgm_memory_clock": "DEV_MEM_CLOCK",
    "dcgm_memory_temp": "DEV_MEMORY_TEMP",
    "dcgm_total_energy_consumption": "DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_pcie_tx_throughput": "DEV_PCIE_TX_THROUGHPUT",
    "dcgm_gpu_utilization": "DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DEV_MEM_COPY_UTIL",
    "dcgm_xid_errors": "DEV_XID_ERRORS",
    "dcgm_fb_used": "DEV_FB_USED",
    "dcgm_ecc_dbe_aggregate_total": "DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_retired_pages_pending": "DEV_RETIRED_PENDING",
    "dcgm_nvlink_bandwidth_total": "DEV_NVLINK_BANDWIDTH_TOTAL",
    "dcgm_fi_prof_dram_active": "PROF_DRAM_ACTIVE",
}


def test_the_file_of_1_x_is_read() -> None:
    unknown = "dcgm_nvlink_replay_error_count_total"
    read = parse("".join(f"{name}, gauge, x\n" for name in (*OLD, unknown)))
    assert read.unknown == (unknown,)
    found = {field.shown: field.name.removeprefix("DCGM_FI_") for field in read.fields}
    assert found == OLD


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_group_and_kind_and_help(ends: str) -> None:
    """The group is ours; the file says the kind, and the help unless it is empty."""
    text = ends.join([f'{GPU_UTIL},counter,"busy, in %"', f"{f.FB_USED},gauge,"])
    busy, used = parse(text).fields
    assert (busy.kind, busy.help) == ("counter", "busy, in %")
    assert [busy.group, used] == [f.UTILIZATION, *listed(f.FB_USED)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("DCGM_FI_DEV_FB_USED", "line 3: 1 columns are not valid; write: field, type"),
        (f"{GPU_UTIL}, gauge", "line 3: 2 columns are not valid"),
        (f"{GPU_UTIL}, gauge, busy, very", "line 3: 4 columns are not valid"),
        (f"{GPU_UTIL}, gage, busy", "line 3: 'gage' is not valid; use one of gauge, c"),
        (f"{GPU_UTIL}, histogram, busy", f"line 3: {GPU_UTIL} is not a histogram; use"),
        (f"{GPU_UTIL}, label, busy", f"line 3: {GPU_UTIL} is not a label; use one of"),
        (", gauge, busy", "line 3: '' is not valid; the names of fields begin with"),
        ("vcuda_card_info, gauge, x", "line 3: 'vcuda_card_info' is not valid; the"),
        ('DCGM_A{b="c"}, gauge, x', "line 3: "),
        ("DCGM_FI DEV, gauge, x", "line 3: 'DCGM_FI DEV' is not valid"),
        (f'{GPU_UTIL}, gauge, "busy', "line 3: unexpected end of data"),
        (f"{GPU_TEMP}, counter, hot", f"line 3: {GPU_TEMP} is listed twice, first as"),
        ("dcgm_gpu_temp, gauge, x", "line 3: dcgm_gpu_temp is listed twice, first as"),
        ("DCGM_X, gauge, x\nDCGM_X, counter, x", "line 4: DCGM_X is listed twice"),
        ("apiVersion: v1", "line 3: 1 columns are not valid"),
    ],
)
def test_a_bad_line_makes_the_file_bad(line: str, complaint: str) -> None:
    with pytest.raises(BadFieldFile) as refused:
        parse(f"# fields\n{GPU_TEMP}, gauge, warm\n{line}\n")
    assert str(refused.value).startswith(complaint)


def test_a_line_that_says_the_same_again_is_no_error() -> None:
    """dcgm-exporter's list of the names of 1.x has one in two sections."""
    name = "dcgm_fi_prof_pcie_tx_bytes"
    lines = f"# PCIe\n{name}, counter, sent\n# DCP\n{name}, counter, active pcie tx\n"
    made = parse(f"{lines}DCGM_X, gauge, x\nDCGM_X, gauge, x\n")
    [shown] = made.fields
    assert (shown.shown, shown.help) == (name, "sent")
    assert (made.unknown, made.repeated) == (("DCGM_X",), (name, "DCGM_X"))


@pytest.mark.parametrize("text", ["", "\n\n", "# all gone\n", "DCGM_X, gauge, x\n"])
def test_a_file_without_any_known_field_is_bad(text: str) -> None:
    """One that was cut short must not switch everything off."""
    with pytest.raises(BadFieldFile, match="lists no field that is known here"):
        parse(text)
