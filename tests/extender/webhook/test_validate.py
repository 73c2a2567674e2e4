"""Denials and warnings of a new pod, each with the field that it is about."""

from collections.abc import Sequence
from typing import Any

import pytest

from extender.pool import UNKNOWN, Pool
from extender.webhook.validate import (
    EnvFrom,
    card_variables,
    covered,
    forged,
    judged_request,
    pool_warnings,
    unknown_resources,
)
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from tests.builders import container_json, pod_json, ref

CORES = 'spec.containers[0].resources.limits["baidu.com/vcuda-core"]'
UNITS = 'spec.containers[0].resources.limits["baidu.com/vcuda-memory"]'


def request_complaints(pod: Json) -> list[str]:
    judged = judged_request(pod)
    assert (judged.request is None) is bool(judged.complaints)
    return list(judged.complaints)


def warnings_of(pod: Json, pool: Pool) -> list[str]:
    request = judged_request(pod).request
    assert request is not None
    return list(pool_warnings(request, pool))


@pytest.mark.parametrize("cores", [0, 1, 99, 100, 200, 1000, "1k"])
def test_shares_and_whole_cards_are_in_order(cores: int | str) -> None:
    """1 to 99 of one card, or as many whole ones as the cluster may have."""
    assert request_complaints(pod_json(units=1, cores=cores)) == []


@pytest.mark.parametrize(
    ("cores", "fix"),
    [
        (101, "100 or 200"),
        (150, "100 or 200"),
        (199, "100 or 200"),
        (250, "200 or 300"),
    ],
)
def test_cores_between_cards(cores: int, fix: str) -> None:
    """The field, the value, what is allowed, and what to ask instead."""
    (complaint,) = request_complaints(pod_json(units=1, cores=cores))
    assert complaint == (
        f"{CORES}: {cores} cores are neither a share of one card (1 to 99) nor whole "
        f"cards; ask {fix}"
    )


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ("1.5", f"{UNITS}: it is 1.5; it must be whole"),
        ("1500m", f"{UNITS}: it is 1500m; it must be whole (1500m is 1.5); ask 2"),
        (f"{'1' * 20}m", f"{UNITS}: it is {'1' * 20}m; it must be whole"),
        (
            "16Gi",
            f"{UNITS}: it is 16Gi, but it counts units of 256 MiB; ask 64",
        ),
        ("5G", f"{UNITS}: it is 5G; no node has so much"),
        ("-1", f"{UNITS}: -1 is not valid: it is below zero"),
        ("many", f"{UNITS}: many is not valid: it is not a Kubernetes quantity"),
        ("x" * 999, f"{UNITS}: {'x' * 99}… is not valid: it is not"),
    ],
)
def test_units_that_no_card_can_meet(units: str, words: str) -> None:
    """Fractions, bytes, and what is no number at all."""
    (complaint,) = request_complaints(pod_json(units=units))
    assert complaint.startswith(words)


def test_all_that_is_wrong_is_said_at_once() -> None:
    """Each container's own, and the policy beside."""
    pod = pod_json(
        containers=[container_json("a", "1.5", "0.5"), container_json("b", "2.5")],
        init=[container_json("i", cores="1Gi")],
        annotations={
            names.POLICY: "bestfit",
            names.CONTAINERS: "x",
            names.MODELS: ",",
        },
    )
    found = request_complaints(pod)
    assert [text.partition(":")[0] for text in found] == [
        'metadata.annotations["baidu.com/vcuda-policy"]',
        'metadata.annotations["baidu.com/vcuda-containers"]',
        'metadata.annotations["baidu.com/vcuda-models"]',
        'spec.initContainers[0].resources.limits["baidu.com/vcuda-core"]',
        CORES,
        UNITS,
        UNITS.replace("[0]", "[1]"),
    ]
    assert found[0].endswith(
        'no policy "bestfit"; known are first-fit, best-fit, spread, frag'
    )


def test_lists_that_deny() -> None:
    """What denies a card is in order; what denies nothing is put to its annotation."""
    lists = {names.MODELS: "!Tesla P4, A10", names.UUIDS: "!GPU-9f12f917"}
    assert request_complaints(pod_json(units=1, annotations=lists)) == []
    broken = pod_json(units=1, annotations={names.MODELS: "!"})
    (complaint,) = request_complaints(broken)
    assert complaint == (
        'metadata.annotations["baidu.com/vcuda-models"]: it has "!"; after one ! comes '
        "what is not allowed"
    )


def test_too_many_containers_apart_are_put_to_the_annotation() -> None:
    """It is what makes them too many."""
    many = [container_json(f"c{n}", 1, 0) for n in range(17)]
    pod = pod_json(containers=many, annotations={names.CONTAINERS: names.APART})
    (complaint,) = request_complaints(pod)
    assert complaint == (
        'metadata.annotations["baidu.com/vcuda-containers"]: 17 containers ask and are '
        "to be apart; at most 16 may be: let some share a card in a pod of their own"
    )


def test_what_limits_and_requests_both_say_is_said_once() -> None:
    """The API server copies one into the other; where they differ, both count."""
    pod = pod_json(units="1.5")
    asked = pod["spec"]["containers"][0]["resources"]
    assert len(request_complaints(pod)) == 1
    asked["requests"][names.MEMORY] = "2.5"
    assert len(request_complaints(pod)) == 2
    del asked["limits"]
    (complaint,) = request_complaints(pod)
    assert complaint.startswith(UNITS.replace("limits", "requests"))


def test_cores_of_several_containers_are_one_sum() -> None:
    """Named each, since none of them alone is wrong."""
    pod = pod_json(
        containers=[
            container_json("a", 1, 60),
            container_json("b", 1),
            container_json("c", 1, 60),
        ]
    )
    (complaint,) = request_complaints(pod)
    assert complaint.startswith(
        f"the containers of a pod share one card, and {CORES} + "
        f"{CORES.replace('[0]', '[2]')}: 120 cores are neither"
    )
    assert judged_request(pod).summed


def test_what_one_container_asks_is_no_sum() -> None:
    """Whatever words are in the complaint."""
    wrong = {names.POLICY: "share one card"}
    assert not judged_request(pod_json(units=1, cores=150, annotations=wrong)).summed
    assert not judged_request(pod_json(units="1.5")).summed
    assert not judged_request(pod_json(units=1)).summed


def test_apart_each_container_is_judged_alone() -> None:
    """60 and 60 are in order then, and each 150 is told."""
    apart = {names.CONTAINERS: names.APART}
    two = [container_json("a", 1, 60), container_json("b", 1, 60)]
    assert request_complaints(pod_json(containers=two, annotations=apart)) == []
    two = [container_json("a", 1, 150), container_json("b", 1, 150)]
    found = request_complaints(pod_json(containers=two, annotations=apart))
    assert [text.partition(":")[0] for text in found] == [
        CORES,
        CORES.replace("[0]", "[1]"),
    ]


def test_apart_with_an_init_container_that_asks() -> None:
    """The annotation is what is wrong; the container is named."""
    pod = pod_json(
        units=1,
        init=[container_json("i"), container_json("j", 1)],
        annotations={names.CONTAINERS: names.APART},
    )
    (complaint,) = request_complaints(pod)
    assert complaint == (
        'metadata.annotations["baidu.com/vcuda-containers"]: containers cannot be '
        "apart when an init container asks for a card, as spec.initContainers[1] does; "
        "remove the annotation, or let it ask for none"
    )


def test_another_word_than_apart() -> None:
    """The one value is named."""
    pod = pod_json(units=1, annotations={names.CONTAINERS: "together"})
    (complaint,) = request_complaints(pod)
    assert complaint == (
        'metadata.annotations["baidu.com/vcuda-containers"]: it is "together"; '
        'the only value is "apart"'
    )


@pytest.mark.parametrize("name", [names.MODELS, names.UUIDS])
def test_a_list_of_cards_that_names_none(name: str) -> None:
    """What the codec refuses is put to the annotation that says it."""
    pod = pod_json(units=1, annotations={name: ","})
    (complaint,) = request_complaints(pod)
    assert complaint.startswith(f'metadata.annotations["{name}"]: it names nothing; ')


def test_nothing_is_said_of_a_pod_that_asks_nothing() -> None:
    """Nor of one whose lists and policy are in order."""
    assert request_complaints(pod_json()) == []
    good = {names.POLICY: "spread", names.MODELS: "Tesla P4"}
    assert request_complaints(pod_json(units=1, annotations=good)) == []


@pytest.mark.parametrize(
    "pod",
    [
        pod_json(units="1.5"),
        pod_json(cores=150),
        pod_json(units=1, annotations={names.CONTAINERS: "x"}),
        pod_json(units=1, annotations={names.POLICY: "spread"}),
        pod_json(units=3, cores=3),
    ],
)
def test_the_extender_thinks_the_same(pod: Json) -> None:
    """Whom it would refuse everywhere is denied, and nobody else."""
    refused = hasattr(codec.pod_request(pod, ref()), "reason")
    assert bool(request_complaints(pod)) is refused


def test_more_than_the_largest_card_has() -> None:
    """A larger one may come; of several whole cards, all together."""
    pool = Pool(largest_units=29, has_resource=True)
    warned = [
        warnings_of(pod_json(units=units, cores=cores), pool)
        for units, cores in ((29, 1), (30, 1), (58, 200), (59, 200))
    ]
    assert warned == [
        [],
        ["baidu.com/vcuda-memory: 30 units are asked, but the largest card has 29"],
        [],
        ["baidu.com/vcuda-memory: 59 units are asked, but the 2 largest cards have 58"],
    ]


def test_no_node_has_cards() -> None:
    """Said where it is known, and of pods that ask only."""
    none = Pool(has_resource=False)
    (warning,) = warnings_of(pod_json(units=1), none)
    assert "no node of this cluster offers baidu.com/vcuda-memory" in warning
    assert warnings_of(pod_json(), none) == []
    assert warnings_of(pod_json(units=1), UNKNOWN) == []


def test_a_misspelt_resource() -> None:
    """Such a pod would be Pending for ever."""
    pod = pod_json(units=1)
    pod["spec"]["containers"][0]["resources"]["limits"]["baidu.com/vcuda-mem"] = "1"
    (warning,) = unknown_resources(pod)
    assert "baidu.com/vcuda-mem is not a known resource" in warning
    assert names.CORE in warning
    assert names.MEMORY in warning
    assert list(unknown_resources(pod_json(units=1, cores=1))) == []


def pod_with(
    env: Sequence[Json] = (),
    *,
    env_from: Sequence[Json] = (),
    units: int | None = 1,
    runtime: str | None = None,
    kind: str = "containers",
) -> Json:
    """A pod that asks for a card, and one more container that brings variables."""
    pod = pod_json(units=1)
    other: Json = container_json("other", units) | {"env": list(env)}
    if env_from:
        other["envFrom"] = list(env_from)
    pod["spec"].setdefault(kind, []).append(other)
    if runtime:
        pod["spec"]["runtimeClassName"] = runtime
    return pod


def variables(pod: Json, env_from: EnvFrom = "auto", cls: str = "") -> list[str]:
    return list(card_variables(pod, env_from, [cls]))


def mounted(*paths: str, units: int | None = 1) -> list[str]:
    mounts = [{"name": "v", "mountPath": path} for path in paths]
    pod = pod_with([], units=units)
    pod["spec"]["containers"][-1]["volumeMounts"] = mounts
    return list(covered(pod))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/vcuda",
        "/etc/vcuda/",
        "/etc/vcuda/allocation.json",
        "//etc//vcuda/.",
        "/etc/x/../vcuda",
        "etc/vcuda",
    ],
)
def test_a_volume_over_what_a_container_is_told(path: str) -> None:
    """kubelet would put it on top, and the container read its own words as ours."""
    (complaint,) = mounted("/data", path)
    assert complaint.startswith("spec.containers[1].volumeMounts[1].mountPath: ")
    assert "/etc/vcuda; mount the volume elsewhere" in complaint
    assert mounted(path, units=None) == []


def test_other_volumes_are_the_pods_own() -> None:
    """Of one mounted above, such as /etc, ours is put on top."""
    assert mounted("/etc", "/", "/etc/vcuda2", "/data/etc/vcuda") == []


@pytest.mark.parametrize("name", [names.PLACEMENT, names.ACTUAL])
def test_annotations_that_others_write(name: str) -> None:
    """Whatever they say, and whether or not the pod asks for anything."""
    (complaint,) = forged(pod_json(annotations={name: "{}"}))
    assert complaint.startswith(f'metadata.annotations["{name}"]: only the ')
    assert "remove it" in complaint
    assert list(forged(pod_json(annotations={names.POLICY: "spread"}))) == []


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "VCUDA_MEMORY_LIMIT_MIB",
        "VCUDA_CARDS",
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_the_card_variables(name: str, kind: str) -> None:
    """In any container of such a pod, or one that asks nothing could have all cards."""
    for units in (1, None):
        pod = pod_with(
            [{"name": "A"}, {"name": name, "value": "all"}], units=units, kind=kind
        )
        (complaint,) = variables(pod)
        place = 1 if kind == "containers" else 0
        assert complaint.startswith(f"spec.{kind}[{place}].env[1]: only the vcuda ")
        assert f"may set {name}" in complaint


@pytest.mark.parametrize(
    "name", ["NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES", "MY_VCUDA_CARDS"]
)
def test_other_variables_are_the_pods_own(name: str) -> None:
    """They cannot show a card that the container does not have."""
    assert variables(pod_with([{"name": name, "value": "all"}])) == []


@pytest.mark.parametrize("value", ["void", "none", "", None])
def test_a_container_that_asks_nothing_may_say_so(value: str | None) -> None:
    """One that asks for a card would hide it from itself."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    assert variables(pod_with(env, units=None)) == []
    assert len(variables(pod_with(env, units=1))) == 1


def test_a_value_from_elsewhere_is_not_nothing() -> None:
    """Nobody can see here what it will be."""
    source = {"configMapKeyRef": {"name": "a", "key": "b"}}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}]
    assert len(variables(pod_with(env, units=None))) == 1


def test_pods_that_ask_nothing_are_not_ours_to_judge() -> None:
    """NVIDIA's own plugin has users too."""
    pod = pod_json()
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["spec"]["containers"][0]["env"] = env
    assert variables(pod) == []


@pytest.mark.parametrize(
    ("rule", "runtime", "told"),
    [
        ("auto", None, False),
        ("auto", "nvidia", True),
        ("auto", "nvidia-cdi", True),
        ("auto", "gpu", True),
        ("auto", "kata", False),
        ("deny", None, True),
        ("allow", "nvidia", False),
    ],
)
def test_variables_from_elsewhere(
    rule: EnvFrom, runtime: str | None, told: bool
) -> None:
    """Denied where the runtime goes by variables; ``gpu`` is ours to set here."""
    pod = pod_with(env_from=[{"configMapRef": {"name": "a"}}], runtime=runtime)
    found = variables(pod, rule, "gpu")
    assert bool(found) is told
    assert all(text.startswith("spec.containers[1].envFrom[0]: ") for text in found)
    assert all("give it a prefix such as APP_" in text for text in found)


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("", True),
        ("N", True),
        ("NVIDIA_VISIBLE_", True),
        ("CUDA_", True),
        ("VCUDA_X", True),
        ("APP_", False),
        ("NVIDIA_DRIVER_", False),
    ],
)
def test_a_prefix_can_make_it_harmless(prefix: str, told: bool) -> None:
    """If no variable of that prefix is one of the card's."""
    found = variables(pod_with(env_from=[{"prefix": prefix}]), "deny")
    assert bool(found) is told


def test_containers_that_ask_nothing_may_have_variables_from_elsewhere() -> None:
    """Most do, and they have no card to hide."""
    assert variables(pod_with(env_from=[{}], units=None), "deny") == []


def debugged(*containers: dict[str, Any]) -> Json:
    pod = pod_json(units=1)
    pod["spec"]["ephemeralContainers"] = list(containers)
    return pod


ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def test_a_debugging_container_must_not_either() -> None:
    """It would see every card of the node."""
    after = debugged({"name": "a", "env": ALL})
    (complaint,) = card_variables(after, "auto", (), pod_json(units=1))
    assert complaint.startswith("spec.ephemeralContainers[0].env[0]: ")
    after = debugged({"name": "a", "envFrom": [{}]})
    assert len(list(card_variables(after, "deny", (), pod_json(units=1)))) == 1


def test_a_debugging_container_that_is_there_stays() -> None:
    """It can be neither changed nor taken out; the next one is judged alone."""
    before = debugged({"name": "a", "env": ALL})
    after = debugged({"name": "a", "env": ALL}, {"name": "b"})
    assert list(card_variables(after, "auto", (), before)) == []
