"""Which groups and fields are on, and the file of fields."""

from dataclasses import replace

import pytest

from deviceplugin.exporter.selection import BadFieldFile, Flags, choose, parse
from deviceplugin.telemetry.fields import (
    ALLOTMENT,
    ENVIRONMENT,
    FAULTS,
    FB_TOTAL,
    FB_USED,
    FIELDS,
    GPU_TEMP,
    GPU_UTIL,
    GROUPS,
    KUBELET,
    MEMORY,
    PCIE,
    PCIE_REPLAY_COUNTER,
    POWER_USAGE,
    PROCESSES,
    PROFILING,
    RETIRED,
    SM_ACTIVE,
    TOTAL_ENERGY_CONSUMPTION,
    UTILIZATION,
    XID_ERRORS,
    Field,
)

SLOW = {RETIRED, PCIE, PROFILING}
NOBODY_ASKED = Flags()


def flags(on: str = "", off: str = "") -> Flags:
    return Flags(frozenset(on.split()), frozenset(off.split()))


def listed(*names: str) -> list[Field]:
    return [one for one in FIELDS if one.name in names]


def shown(chosen_by: Flags, file: list[Field] | None = None) -> set[str]:
    return {one.name for one in choose(chosen_by, file).fields}


def fields_of(*groups: str) -> set[str]:
    return {one.name for one in FIELDS if one.group in groups}


def test_all_but_the_slow_groups_are_on_by_default() -> None:
    """Whoever wants those must say so."""
    chosen = choose(NOBODY_ASKED)
    assert chosen.groups == {group.name for group in GROUPS} - SLOW
    assert {one.name for one in chosen.fields} == (
        {one.name for one in FIELDS} - fields_of(*SLOW)
    )


@pytest.mark.parametrize("group", [group.name for group in GROUPS])
def test_each_group_has_a_flag_both_ways(group: str) -> None:
    """On means all its fields, off none; no other group is touched."""
    on, off = choose(flags(on=group)), choose(flags(off=group))
    assert on.groups - off.groups == {group}
    assert on.groups - {group} == off.groups
    names = {one.name for one in on.fields} - {one.name for one in off.fields}
    assert names == fields_of(group)


def test_what_is_shown_is_read_in_its_group() -> None:
    """Each field is asked for once."""
    chosen = choose(flags(on=" ".join(SLOW)))
    for group, names in chosen.read.items():
        assert set(names) == fields_of(group)
        assert len(names) == len(set(names))
    assert chosen.read.keys() == {one.group for one in FIELDS}


def test_a_file_governs_the_fields_of_cards() -> None:
    """Those it lists and no others; groups without fields keep to the defaults."""
    chosen = choose(NOBODY_ASKED, listed(GPU_TEMP, GPU_UTIL))
    assert [one.name for one in chosen.fields] == [GPU_UTIL, GPU_TEMP]
    assert {PROCESSES, ALLOTMENT, KUBELET} < chosen.groups
    assert chosen.read[ENVIRONMENT] == (GPU_TEMP,)
    assert FAULTS not in chosen.groups


def test_a_file_may_list_a_slow_field() -> None:
    """Its group is then on, for that field alone."""
    chosen = choose(NOBODY_ASKED, listed(SM_ACTIVE))
    assert chosen.read[PROFILING] == (SM_ACTIVE,)
    assert PROFILING in chosen.groups


def test_flags_win_over_the_file() -> None:
    """On: all fields, whatever the file lists; off: none, though it lists them."""
    file = listed(GPU_TEMP, SM_ACTIVE)
    on = fields_of(ENVIRONMENT) | {SM_ACTIVE}
    assert shown(flags(on=ENVIRONMENT), file) == on
    assert shown(flags(off=PROFILING), file) == {GPU_TEMP}


def test_the_file_s_help_and_kind_are_kept() -> None:
    """Also of a field whose group a flag switched on beside."""
    (own,) = listed(POWER_USAGE)
    mine = replace(own, help="Watts", kind="counter")
    for given in (NOBODY_ASKED, flags(on=ENVIRONMENT)):
        chosen = choose(given, [mine])
        assert mine in chosen.fields
        assert own not in chosen.fields


def test_memory_is_read_for_the_edge_agent_whatever_is_shown() -> None:
    """``/v1/collect`` is of it; only the flag leaves it out."""
    chosen = choose(NOBODY_ASKED, listed(GPU_TEMP))
    assert chosen.read[MEMORY] == (FB_USED, FB_TOTAL)
    assert MEMORY in chosen.groups
    assert MEMORY not in choose(flags(off=MEMORY), listed(GPU_TEMP)).read


def test_the_card_s_utilization_is_read_for_lone_tenants() -> None:
    """Only where processes are read, and unless the flag leaves it out."""
    file = listed(GPU_TEMP)
    assert choose(NOBODY_ASKED, file).read[UTILIZATION] == (GPU_UTIL,)
    assert UTILIZATION not in choose(flags(off=PROCESSES), file).groups
    assert UTILIZATION not in choose(flags(off=UTILIZATION), file).groups


def test_faults_alone_keep_their_group() -> None:
    """Its round says which cards report any."""
    chosen = choose(NOBODY_ASKED, listed(XID_ERRORS))
    assert chosen.read[FAULTS] == (XID_ERRORS,)


def test_everything_may_be_off() -> None:
    """Then nothing is read."""
    chosen = choose(flags(off=" ".join(group.name for group in GROUPS)))
    assert not chosen.groups
    assert not chosen.fields
    assert not chosen.read


DEFAULT = """\
# Format
# If line starts with a '#' it is considered a comment
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock frequency (in MHz).

# Temperature
DCGM_FI_DEV_MEMORY_TEMP, gauge, Memory temperature (in C).
DCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).

# Power
DCGM_FI_DEV_POWER_USAGE,              gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy since boot (in mJ).

# PCIE
# DCGM_FI_PROF_PCIE_TX_BYTES,  counter, Total number of bytes transmitted.
DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, Total number of PCIe retries.

# Utilization
DCGM_FI_DEV_GPU_UTIL,      gauge, GPU utilization (in %).
DCGM_FI_DEV_XID_ERRORS,    gauge, Value of the last XID error encountered.
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).

# DCP metrics
DCGM_FI_PROF_GR_ENGINE_ACTIVE,   gauge, Ratio of time the graphics engine is active.

DCGM_FI_DEV_FAN_SPEED, gauge, Fan speed (in %).

# License
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status

# Static configuration information, as labels
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""


def test_dcgm_exporters_own_file_is_read() -> None:
    """Comments, blank lines, padding, labels; what is not known here is named."""
    read = parse(DEFAULT)
    assert len(read.fields) == 12
    assert {one.name for one in read.fields} < {one.name for one in FIELDS}
    assert read.unknown == ("DCGM_FI_DEV_FAN_SPEED",)
    by_name = {one.name: one for one in read.fields}
    assert by_name[GPU_TEMP].help == "GPU temperature (in C)."
    assert by_name[TOTAL_ENERGY_CONSUMPTION].kind == "counter"


OLD = """\
# Format
dcgm_sm_clock,     gauge, SM clock frequency (in MHz).
dcgm_memory_clock, gauge, Memory clock frequency (in MHz).
dcgm_memory_temp, gauge, Memory temperature (in C).
dcgm_total_energy_consumption, counter, Total energy consumption since boot (in mJ).
dcgm_pcie_tx_throughput,  counter, PCIe TX (in KB) via NVML.
dcgm_gpu_utilization,      gauge, GPU utilization (in %).
dcgm_mem_copy_utilization, gauge, Memory utilization (in %).
dcgm_xid_errors,            gauge, Value of the last XID error encountered.
dcgm_fb_used, gauge, Framebuffer memory used (in MiB).
dcgm_ecc_dbe_aggregate_total, counter, Total number of double-bit persistent errors.
dcgm_retired_pages_pending, counter, Total number of pages pending retirement.
dcgm_nvlink_bandwidth_total,            counter, NVLink bandwidth of all lanes
dcgm_fi_prof_dram_active,        gauge, Ratio of cycles (in %).
dcgm_nvlink_replay_error_count_total,   counter, Total number of NVLink retries.
"""


def test_the_file_of_1_x_is_read() -> None:
    """Each field is the same one under another name, and is shown by that."""
    read = parse(OLD)
    assert read.unknown == ("dcgm_nvlink_replay_error_count_total",)
    assert {one.shown: one.name.removeprefix("DCGM_FI_") for one in read.fields} == {
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


def test_a_field_under_both_its_names_is_doubled() -> None:
    """Two series would have the same labels."""
    with pytest.raises(BadFieldFile, match="dcgm_gpu_temp is listed twice"):
        parse(f"{GPU_TEMP}, gauge, x\ndcgm_gpu_temp, gauge, x\n")


def test_group_and_kind_and_help() -> None:
    """The group is ours; the file says the kind, and the help unless it is empty."""
    own = {one.name: one for one in FIELDS}
    read = parse(f'{GPU_UTIL},counter,"busy, in %"\n{FB_USED},gauge,\n')
    busy, used = read.fields
    assert (busy.kind, busy.help) == ("counter", "busy, in %")
    assert busy.group == own[GPU_UTIL].group
    assert used == own[FB_USED]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_line_ends_do_not_matter(ends: str) -> None:
    """A file that was written elsewhere, and one without a last line end."""
    lines = [f"{GPU_UTIL},gauge,busy", f"{PCIE_REPLAY_COUNTER},counter,again"]
    read = parse(ends.join(lines))
    assert [one.help for one in read.fields] == ["busy", "again"]


GOOD = f"{GPU_TEMP}, gauge, warm\n"


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
        (f"{GPU_TEMP}, gauge, hot", f"line 3: {GPU_TEMP} is listed twice; leave"),
        ("DCGM_X, gauge, x\nDCGM_X, gauge, x", "line 4: DCGM_X is listed twice"),
        ("apiVersion: v1", "line 3: 1 columns are not valid"),
    ],
)
def test_a_bad_line_makes_the_file_bad(line: str, complaint: str) -> None:
    """The sentence names the line and what would do; nothing is taken by half."""
    with pytest.raises(BadFieldFile) as refused:
        parse(f"# fields\n{GOOD}{line}\n")
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize("text", ["", "\n\n", "# all gone\n", "DCGM_X, gauge, x\n"])
def test_a_file_without_any_known_field_is_bad(text: str) -> None:
    """One that was cut short must not switch everything off."""
    with pytest.raises(BadFieldFile, match="lists no field that is known here"):
        parse(text)
