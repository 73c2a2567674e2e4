"""What is on: by default, by flags, by a file of fields."""

from dataclasses import replace

import pytest

from deviceplugin.exporter.selection import Flags, choose
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
    POWER_USAGE,
    PROCESSES,
    PROFILING,
    RETIRED,
    SM_ACTIVE,
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
