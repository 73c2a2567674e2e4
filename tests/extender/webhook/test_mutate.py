"""What a new pod is given that it did not say."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.webhook import mutate
from gpushare.domain.model import Amount
from gpushare.domain.request import effective
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.request_cache import containers
from tests.builders import container_json, pod_json

VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def every(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def cores(pod: Json) -> list[tuple[Any, Any]]:
    """Each container's cores, as it asks and as it is limited."""
    found = []
    for one in every(pod):
        asked = one.get("resources", {})
        parts = (asked.get("requests", {}), asked.get("limits", {}))
        found.append(tuple(part.get(names.CORE) for part in parts))
    return found


def defaulted(pod: Json) -> list[tuple[Any, Any]]:
    mutate.default_cores(pod)
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
    assert defaulted(pod) == [
        ("1", "1"),
        (None, None),
        ("1", "1"),
        ("7", "7"),
        ("0", "0"),
        ("5", "5"),
        (None, None),
    ]


def test_a_pod_that_limits_only_is_limited_only() -> None:
    """The API server makes requests of limits, and nothing of requests alone."""
    pod = pod_json(units=4)
    del pod["spec"]["containers"][0]["resources"]["requests"]
    assert defaulted(pod) == [(None, "1")]


@pytest.mark.parametrize("cores_beside", [99, 100, 200])
def test_a_share_is_not_made_a_whole_card(cores_beside: int) -> None:
    """99 and 1 would be a card of its own, 100 and 1 neither this nor that."""
    beside = container_json("a", 4, cores_beside)
    pod = pod_json(containers=[beside, container_json("b", 4)])
    assert defaulted(pod)[1] == (None, None)
    pod["metadata"]["annotations"] = {names.CONTAINERS: names.APART}
    assert defaulted(pod)[1] == ("1", "1")


def test_init_containers_run_before_the_others() -> None:
    """So theirs do not add up with what comes after."""
    pod = pod_json(init=[container_json("i", 4)], containers=[container_json("a", 4)])
    pod["spec"]["containers"][0]["resources"]["limits"][names.CORE] = "99"
    pod["spec"]["containers"][0]["resources"]["requests"][names.CORE] = "99"
    assert defaulted(pod) == [("1", "1"), ("99", "99")]


def amount(pod: Json) -> Amount:
    """What quotas count of a pod."""
    return effective(containers(pod))


def test_quotas_count_who_asks_no_core_in_words() -> None:
    """0 is left alone without the option, and is 1 with it."""
    pod = pod_json(init=[container_json("i", 4, 0)], units=4, cores=0)
    assert defaulted(pod) == [("0", "0"), ("0", "0")]
    mutate.default_cores(pod, even_zero=True)
    assert cores(pod) == [("1", "1"), ("1", "1")]


@pytest.mark.parametrize("said", [None, 0])
def test_a_crowd_of_containers_is_counted_too(said: int | None) -> None:
    """100 of them with a core each would be a whole card: then one of them has one."""
    pod = pod_json(containers=[container_json(f"c{n}", 1, said) for n in range(100)])
    mutate.default_cores(pod, even_zero=True)
    assert amount(pod) == Amount(1, 100)


WHOLE: dict[str, tuple[list[Json], list[Json], list[int | None]]] = {
    "one": ([], [container_json("a", cores=100)], [29]),
    "two": ([], [container_json("a", cores=200)], [58]),
    "a card each": ([], [container_json(n, cores=100) for n in "ab"], [29, 29]),
    "too little": ([], [container_json("a", 1, 100)], [29]),
    "more": ([], [container_json("a", 96, 100)], [96]),
    "beside": ([], [container_json("a", 0, 100), container_json("b", 9)], [20, 9]),
    "in parts": ([], [container_json("a", 4, 60), container_json("b", 4, 40)], [25, 4]),
    "at first": (
        [container_json("i", 9, 100)],
        [container_json("a", cores=100)],
        [9, 29],
    ),
    "at first alone": (
        [container_json("i", 9, 100)],
        [container_json("a", 4)],
        [29, 4],
    ),
    "a share": ([], [container_json("a", cores=50)], [None]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_cards_ask_their_memory(name: str) -> None:
    """As much as the smallest cards have, so that any card will do as before."""
    init, containers, units = WHOLE[name]
    pod = deepcopy(pod_json(init=init, containers=containers))
    mutate.memory_of_whole_cards(pod, 29)
    asked = [one["resources"]["limits"].get(names.MEMORY) for one in every(pod)]
    assert asked == [None if one is None else str(one) for one in units]
    assert asked == [
        one["resources"]["requests"].get(names.MEMORY) for one in every(pod)
    ]


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
    mutate.default_cores(pod, even_zero=True)
    after = amount(pod)
    assert after.units == before.units
    assert after.cores // 100 == before.cores // 100
    assert after.cores or not after.units
    mutate.memory_of_whole_cards(pod, 29)
    least = after.cores // 100 * 29
    assert amount(pod) == Amount(after.cores, max(after.units, least))


@pytest.mark.parametrize("units", ["1.5", "16Gi", "many"])
def test_what_is_out_of_order_is_left_for_the_rules(units: str) -> None:
    """They deny it."""
    assert defaulted(pod_json(units=units)) == [(None, None)]


def under(runtime: str | None, *containers: Json, key: str = "containers") -> Json:
    pod = pod_json(containers=[container_json("first", 1)])
    pod["spec"][key] = list(containers)
    pod["spec"]["runtimeClassName"] = runtime
    return pod


def voided(
    pod: Json, runtime_class: str = "", key: str = "containers"
) -> list[list[Json]]:
    mutate.void(pod, [runtime_class], None)
    return [one.get("env") or [] for one in pod["spec"][key]]


@pytest.mark.parametrize(
    ("runtime", "given"),
    [("nvidia", [VOID]), ("nvidia-cdi", [VOID]), ("gpu", [VOID]), ("kata", [])],
)
def test_who_asks_for_nothing_sees_nothing(runtime: str, given: list[Json]) -> None:
    """Under nvidia's RuntimeClass, and the one that operators give our pods."""
    assert voided(under(runtime, container_json("a")), "gpu") == [given]
    assert voided(under(None, container_json("a")), "gpu") == [[]]


def test_who_asks_for_a_card_keeps_it() -> None:
    """Of us, of NVIDIA's own plugin, or by a claim of its driver."""
    claim = container_json("c") | {"resources": {"claims": [{"name": "gpu"}]}}
    theirs = container_json("b") | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = under("nvidia", container_json("a", 4), theirs, claim, container_json("d"))
    assert voided(pod) == [[], [], [], [VOID]]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", names.MEMORY])
def test_to_ask_for_none_of_it_is_to_ask_for_nothing(name: str) -> None:
    """kubelet asks no plugin then, so the image's own word would hold."""
    zero = container_json("a") | {"resources": {"limits": {name: "0"}}}
    assert voided(under("nvidia", zero)) == [[VOID]]


def test_init_containers_too() -> None:
    """They run under the same class."""
    pod = under("nvidia", container_json("a"), key="initContainers")
    assert voided(pod, key="initContainers") == [[VOID]]


@pytest.mark.parametrize(
    "own", [{"value": "all"}, {"valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
)
def test_a_variable_of_its_own_is_written_over(own: Json) -> None:
    """And told, since somebody meant it."""
    env = [{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES"} | own]
    pod = under("nvidia", container_json("a") | {"env": env})
    (warning,) = mutate.void(pod, (), None)
    assert "spec.containers[0]: NVIDIA_VISIBLE_DEVICES was set to void" in warning
    assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}, VOID]
    assert mutate.void(pod, (), None) == []


def test_in_a_pod_that_asks_it_is_left_for_the_rules() -> None:
    """They deny it; the others of the pod are voided all the same."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    bold = container_json("b") | {"env": env}
    pod = under("nvidia", container_json("a", 4), bold, container_json("c"))
    assert mutate.void(pod, (), None) == []
    assert voided(pod) == [[], env, [VOID]]


def test_of_a_pod_that_runs_only_the_new_debugging_container_changes() -> None:
    """All else of it is not to be changed any more."""
    pod = under("nvidia", container_json("a"))
    before = deepcopy(pod)
    before["spec"]["ephemeralContainers"] = [{"name": "x"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "x"}, {"name": "y"}]
    assert mutate.void(pod, (), before) == []
    assert pod["spec"]["containers"] == before["spec"]["containers"]
    assert pod["spec"]["ephemeralContainers"] == [
        {"name": "x"},
        {"name": "y", "env": [VOID]},
    ]


@pytest.mark.parametrize("own", [None, "", "default-scheduler"])
def test_the_scheduler_is_set_where_none_was_chosen(own: str | None) -> None:
    """The API server writes its usual one before anybody asks us."""
    pod = pod_json(units=1)
    pod["spec"]["schedulerName"] = own
    assert mutate.scheduler(pod, "vcuda") == []
    assert pod["spec"]["schedulerName"] == "vcuda"
    assert mutate.scheduler(pod, "vcuda") == []


def test_a_scheduler_of_the_pods_own_stays_and_is_told() -> None:
    """It knows totals, and no cards."""
    pod = pod_json(units=1)
    pod["spec"]["schedulerName"] = "volcano"
    (warning,) = mutate.scheduler(pod, "vcuda")
    assert "only vcuda knows which cards have room" in warning
    assert pod["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(("own", "then"), [(None, "gpu"), ("", "gpu"), ("x", "x")])
def test_the_runtime_class_is_set_where_there_is_none(
    own: str | None, then: str
) -> None:
    """Who names one knows why."""
    pod = under(own, container_json("a", 1))
    mutate.runtime_class(pod, "gpu")
    assert pod["spec"]["runtimeClassName"] == then
