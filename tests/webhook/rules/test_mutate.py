"""What a new pod is given that it did not say."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import Amount
from gpushare.domain.request import peak_amount
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import read_containers
from tests.builders import container_json, pod_json
from tests.webhook.webhook_client import every_container
from webhook.pod import PARTS, names_mib
from webhook.pool import CardPool
from webhook.rules import mutate

VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def cores(pod: Json) -> list[str | None]:
    """Each container's cores, the same as it asks and as it is limited."""
    found = []
    for one in every_container(pod):
        asked = one.get("resources", {})
        parts = [asked.get(part, {}).get(names.CORE) for part in PARTS if part in asked]
        assert len(set(parts)) <= 1
        found.append(parts[0] if parts else None)
    return found


def defaulted(pod: Json, *, even_zero: bool = False) -> list[str | None]:
    mutate.set_default_cores(pod, even_zero=even_zero)
    return cores(pod)


def test_one_core_where_memory_is_asked_alone() -> None:
    """Whoever says something of cores, be it 0, is left alone; so is who asks none."""
    pod = pod_json(
        init=[container_json("i", 4), container_json("z", 0)],
        containers=[
            container_json("a", 4),
            container_json("b", 4, 7),
            container_json("c", 4, 0),
            container_json("d", cores=5),
            container_json("e"),
        ],
    )
    assert defaulted(pod) == ["1", None, "1", "7", "0", "5", None]
    limited = pod_json(units=4)
    del limited["spec"]["containers"][0]["resources"]["requests"]
    assert defaulted(limited) == ["1"]
    first = pod_json(init=[container_json("i", 4)], units=4, cores=99)
    assert defaulted(first) == ["1", "99"]
    zero = pod_json(init=[container_json("i", 4, 0)], units=4, cores=0)
    assert defaulted(zero) == ["0", "0"]
    assert defaulted(zero, even_zero=True) == ["1", "1"]


@pytest.mark.parametrize("cores_beside", [99, 100, 200])
def test_a_share_is_not_made_a_whole_card(cores_beside: int) -> None:
    """99 and 1 would be a card of its own, 100 and 1 neither this nor that."""
    beside = container_json("a", 4, cores_beside)
    pod = pod_json(containers=[beside, container_json("b", 4)])
    assert defaulted(pod)[1] is None
    pod["metadata"]["annotations"] = {names.CONTAINERS: names.APART}
    assert defaulted(pod)[1] == "1"


def amount(pod: Json) -> Amount:
    return peak_amount(read_containers(pod))


@pytest.mark.parametrize("said", [None, 0])
def test_a_crowd_of_containers_is_counted_too(said: int | None) -> None:
    """100 of them with a core each would be a whole card: then one of them has one."""
    pod = pod_json(containers=[container_json(f"c{n}", 1, said) for n in range(100)])
    mutate.set_default_cores(pod, even_zero=True)
    assert amount(pod) == Amount(1, 100)


FIRST = [container_json("i", 9, 100)]


@pytest.mark.parametrize(
    ("init", "containers", "units"),
    [
        ([], [container_json("a", cores=100)], [29]),
        ([], [container_json("a", cores=200)], [58]),
        ([], [container_json(n, cores=100) for n in "ab"], [29, 29]),
        ([], [container_json("a", 1, 100)], [29]),
        ([], [container_json("a", 96, 100)], [96]),
        ([], [container_json("a", 0, 100), container_json("b", 9)], [20, 9]),
        ([], [container_json("a", 4, 60), container_json("b", 4, 40)], [25, 4]),
        ([], [container_json("a", 70, 200), container_json("b", cores=100)], [70, 17]),
        ([], [container_json("a", cores=44_900)], [None]),
        (FIRST, [container_json("a", cores=100)], [9, 29]),
        (
            [container_json("i", cores=100)],
            [container_json("a", cores=150), container_json("b", cores=50)],
            [29, 58, None],
        ),
        (FIRST, [container_json("a", 4)], [29, 4]),
        ([], [container_json("a", cores=50)], [None]),
    ],
)
def test_whole_cards_ask_their_memory(
    init: list[Json], containers: list[Json], units: list[int | None]
) -> None:
    """As much as the smallest cards have, so that any card will do as before."""
    pod = deepcopy(pod_json(init=init, containers=containers))
    mutate.set_memory_of_whole_cards(pod, CardPool(29, 29))
    expected = [None if one is None else str(one) for one in units]
    for part in PARTS:
        asked = [
            one["resources"][part].get(names.MEMORY) for one in every_container(pod)
        ]
        assert asked == expected


@given(st.integers(0, 10**7))
def test_mib_become_the_units_that_hold_them(mib: int) -> None:
    """No MiB less than asked, and less than one unit more."""
    pod = pod_json(containers=[container_json("a", mib=mib), container_json("b")])
    assert names_mib(pod)
    (told,) = mutate.replace_mib_by_units(pod)
    units = amount(pod).units
    assert units * 256 >= mib > (units - 1) * 256
    assert told.startswith(f"spec.containers[0]: {mib} MiB are {units} units")
    assert (f"({units * 256} MiB)" in told) is (units * 256 != mib)
    for part in PARTS:
        assert every_container(pod)[0]["resources"][part] == {names.MEMORY: str(units)}
    assert not names_mib(pod)
    assert mutate.replace_mib_by_units(pod) == []


AMOUNTS = st.builds(
    container_json,
    st.uuids().map(str),
    st.sampled_from([None, 0, 1, 4, 29, 70]),
    st.sampled_from([None, 0, 1, 40, 60, 99, 100, 150, 200]),
    restart=st.sampled_from([None, "Always"]),
)


@given(st.lists(AMOUNTS, max_size=3), st.lists(AMOUNTS, min_size=1, max_size=4))
def test_quotas_count_what_a_pod_holds(
    init: list[Json], containers: list[Json]
) -> None:
    """Cores where there is memory, and the memory of whole cards: no more than that."""
    pod = deepcopy(pod_json(init=init, containers=containers))
    before = amount(pod)
    mutate.set_default_cores(pod, even_zero=True)
    after = amount(pod)
    assert after.units == before.units
    assert after.cores // 100 == before.cores // 100
    assert after.cores or not after.units
    mutate.set_memory_of_whole_cards(pod, CardPool(29, 29))
    least = after.cores // 100 * 29
    assert amount(pod) == Amount(after.cores, max(after.units, least))


@pytest.mark.parametrize("units", ["1.5", "many"])
def test_what_is_out_of_order_is_left_for_the_rules(units: str) -> None:
    assert defaulted(pod_json(units=units)) == [None]


def under(runtime: str | None, *containers: Json, key: str = "containers") -> Json:
    pod = pod_json(containers=[container_json("first", 1)])
    pod["spec"][key] = list(containers)
    pod["spec"]["runtimeClassName"] = runtime
    return pod


def voided(pod: Json, runtime: str = "", key: str = "containers") -> list[list[Json]]:
    assert mutate.hide_cards(pod, [runtime], None) == []
    return [one.get("env") or [] for one in pod["spec"][key]]


@pytest.mark.parametrize("key", ["containers", "initContainers"])
@pytest.mark.parametrize("runtime", ["nvidia", "nvidia-cdi", "gpu", "kata", None])
def test_who_asks_for_nothing_sees_nothing(runtime: str | None, key: str) -> None:
    """Under nvidia's RuntimeClass, and the one that operators give our pods."""
    pod = under(runtime, container_json("a"), key=key)
    given = [] if runtime in ("kata", None) else [VOID]
    assert voided(pod, "gpu", key) == [given]


def test_who_asks_for_a_card_keeps_it() -> None:
    """Of us, of NVIDIA's own plugin, or by a claim of its driver.

    To ask for 0 is to ask for nothing: kubelet calls no plugin then. In a pod that asks
    for a card a variable of its own is left for the rules, which deny it.
    """

    def limited(**limits: str) -> Json:
        return container_json("b") | {"resources": {"limits": limits}}

    claim = container_json("c") | {"resources": {"claims": [{"name": "gpu"}]}}
    zeros = [limited(**{name: "0"}) for name in ("nvidia.com/gpu", names.MEMORY)]
    bold = container_json("b") | {"env": [VOID | {"value": "all"}]}
    theirs = limited(**{"nvidia.com/gpu": "1"})
    pod = under("nvidia", container_json("a", 4), theirs, claim, bold, *zeros)
    assert voided(pod) == [[], [], [], bold["env"], [VOID], [VOID]]


@pytest.mark.parametrize(
    "own", [{"value": "all"}, {"valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
)
def test_a_variable_of_its_own_is_written_over(own: Json) -> None:
    """And told, since somebody meant it."""
    env = [{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES"} | own]
    pod = under("nvidia", container_json("a") | {"env": env})
    (warning,) = mutate.hide_cards(pod, (), None)
    assert "spec.containers[0]: NVIDIA_VISIBLE_DEVICES was set to void" in warning
    assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}, VOID]
    assert mutate.hide_cards(pod, (), None) == []


def test_of_a_pod_that_runs_only_the_new_debugging_container_changes() -> None:
    pod = under("nvidia", container_json("a"))
    before = deepcopy(pod)
    before["spec"]["ephemeralContainers"] = [{"name": "x"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "x"}, {"name": "y"}]
    assert mutate.hide_cards(pod, (), before) == []
    assert pod["spec"]["containers"] == before["spec"]["containers"]
    voided = [{"name": "x"}, {"name": "y", "env": [VOID]}]
    assert pod["spec"]["ephemeralContainers"] == voided


@pytest.mark.parametrize("own", [None, "", "default-scheduler", "volcano"])
def test_the_scheduler_is_set_where_none_was_chosen(own: str | None) -> None:
    """The API server writes its usual one before; another one knows no cards."""
    pod = pod_json(units=1)
    pod["spec"]["schedulerName"] = own
    for _ in range(2):
        told = mutate.set_scheduler(pod, "vcuda")
        then, words = ("volcano", 1) if own == "volcano" else ("vcuda", 0)
        assert (pod["spec"]["schedulerName"], len(told)) == (then, words)
        assert all("only vcuda knows which cards have" in text for text in told)


@pytest.mark.parametrize(("own", "then"), [(None, "gpu"), ("", "gpu"), ("x", "x")])
def test_the_runtime_class_is_set_where_there_is_none(
    own: str | None, then: str
) -> None:
    pod = under(own, container_json("a", 1))
    mutate.set_runtime_class(pod, "gpu")
    assert pod["spec"]["runtimeClassName"] == then
