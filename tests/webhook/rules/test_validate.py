"""Denials and warnings of a new pod, each with the field that it is about."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from gpushare.domain.model import Refusal
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import container_json, pod_json, ref
from webhook.pod import pod_containers
from webhook.pool import UNKNOWN, CardPool
from webhook.rules.validate import (
    EnvFrom,
    deny_card_variables,
    deny_forged_annotations,
    deny_mib_left,
    deny_mounts_over_share,
    judge_request,
    read_mib,
    warn_of_unknown_resources,
    warn_of_waits,
)

CORES = 'spec.containers[0].resources.limits["baidu.com/vcuda-core"]'
UNITS = 'spec.containers[0].resources.limits["baidu.com/vcuda-memory"]'
POOL = CardPool(largest_units=29, has_resource=True)
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def request_complaints(pod: Json) -> list[str]:
    judged = judge_request(pod)
    assert (judged.request is None) is bool(judged.complaints)
    return list(judged.complaints)


def warnings_of(pod: Json, pool: CardPool) -> list[str]:
    request = judge_request(pod).request
    assert request is not None
    return list(warn_of_waits(request, pool))


MIB = 'spec.containers[0].resources.limits["baidu.com/vcuda-memory-mib"]'


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("5Gi", "5Gi is in bytes, and this counts MiB; for 5 GiB write 5120"),
        ("512Ki", "512Ki is in bytes, and this counts MiB; for 512 KiB write 1"),
        (
            "5G",
            (
                "5G is more than any node has, and this counts MiB; for 5G bytes "
                "write 4769"
            ),
        ),
        ("2500m", "it is 2500m; it must be whole (2500m is 2.5); ask 3"),
        ("-1", "-1 is not valid: it is below zero"),
        ("x", "x is not valid: it is not a Kubernetes quantity"),
    ],
)
def test_an_amount_that_is_no_number_of_mib(asked: str, told: str) -> None:
    """What to write instead; bytes would be a card of 5 million GiB."""
    pod = pod_json(containers=[container_json(mib=asked)])
    assert list(deny_mib_left(pod)) == [f"{MIB}: {told}"]


def test_one_spelling_of_memory_in_a_container() -> None:
    """Two could contradict each other; another container may have the other one."""
    both = container_json("a", 20, mib=5120)
    pod = pod_json(containers=[both, container_json("b", 4)])
    (told,) = deny_mib_left(pod)
    assert told == (
        f"{MIB}: {names.MEMORY} asks for the same memory in units; remove one of them, "
        "from the pod or from a LimitRange of the namespace that adds it"
    )


def test_a_default_of_no_units_is_no_second_spelling() -> None:
    """As a LimitRange writes it into every container that names no units."""
    pod = pod_json(containers=[container_json("a", 0, mib=5000)])
    assert read_mib(next(pod_containers(pod))) == 5000


def test_requests_of_mib_equal_limits() -> None:
    """As the API server insists for units, which both may become."""
    uneven = container_json(mib=5000)
    uneven["resources"]["requests"][names.MEMORY_MIB] = "5001"
    (told,) = deny_mib_left(pod_json(containers=[uneven]))
    assert told == f"{MIB}: its request and its limit must be equal"


def test_mib_that_came_too_late() -> None:
    """Of a container that another webhook added: it would wait for ever."""
    (told,) = deny_mib_left(pod_json(init=[container_json("i", mib="5k")]))
    assert told.startswith("spec.initContainers[0]: no node offers baidu.com/vcuda-mem")
    assert told.endswith(f"let it be added as {names.MEMORY}: 20")


APART = {names.CONTAINERS: names.APART}
TOGETHER = 'metadata.annotations["baidu.com/vcuda-containers"]: '
MODELS = 'metadata.annotations["baidu.com/vcuda-models"]: it '


def two(units: object, cores: object = None) -> list[Json]:
    return [container_json(name, units, cores) for name in "ab"]


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (pod_json(), []),
        *((pod_json(units=1, cores=n), []) for n in (0, 1, 99, 100, 200, 1000, "1k")),
        *(
            (pod_json(units=1, cores=n), [f"{CORES}: {n} cores are neither a share of"])
            for n in (101, 199, 250)
        ),
        *(
            (pod_json(units=units), [f"{UNITS}: {words}"])
            for units, words in (
                ("1.5", "it is 1.5; it must be whole"),
                ("1500m", "it is 1500m; it must be whole (1500m is 1.5); ask 2"),
                (f"{'1' * 20}m", f"it is {'1' * 20}m; it must be whole"),
                ("16Gi", "it is 16Gi, but it counts units of 256 MiB; ask 64"),
                ("5G", "it is 5G; no node has so much"),
                ("-1", "-1 is not valid: it is below zero"),
                ("many", "many is not valid: it is not a Kubernetes quantity"),
                ("x" * 999, f"{'x' * 99}… is not valid: it is not"),
            )
        ),
        (pod_json(containers=two(1, 60), annotations=APART), []),
        (
            pod_json(containers=two(1, 150), annotations=APART),
            [f"{CORES}: 150", f"{CORES.replace('[0]', '[1]')}: 150"],
        ),
        (
            pod_json(
                containers=[container_json(f"c{n}", 1, 0) for n in range(17)],
                annotations=APART,
            ),
            [f"{TOGETHER}17 containers ask and are to be apart; at most 16 may be"],
        ),
        (
            pod_json(
                units=1,
                init=[container_json("i"), container_json("j", 1)],
                annotations=APART,
            ),
            [f"{TOGETHER}containers cannot be apart when an init container asks for"],
        ),
        *(
            (pod_json(units=1, annotations=notes), told)
            for notes, told in (
                ({names.CONTAINERS: "x"}, [f'{TOGETHER}it is "x"; the only value is']),
                ({names.POLICY: "spread", names.MODELS: "Tesla P4"}, []),
                ({names.MODELS: "!Tesla P4, A10", names.UUIDS: "!GPU-9f12f917"}, []),
                ({names.MODELS: "!"}, [f'{MODELS}has "!"; after one ! comes what is']),
                ({names.MODELS: ","}, [f"{MODELS}names nothing; "]),
            )
        ),
    ],
)
def test_what_a_pod_asks_is_judged_by_the_field(pod: Json, told: list[str]) -> None:
    """The field, the value, what is allowed, and what to ask instead.

    The extender would refuse everywhere what is denied here, and nothing else.
    """
    found = request_complaints(pod)
    assert len(found) == len(told)
    for text, words in zip(found, told, strict=True):
        assert text.startswith(words)
    assert not judge_request(pod).summed
    with suppress(Malformed):
        assert isinstance(codec.read_pod_request(pod, ref()), Refusal) is bool(told)


def test_all_that_is_wrong_is_said_at_once() -> None:
    pod = pod_json(
        containers=[container_json("a", "1.5", "0.5"), container_json("b", "2.5")],
        init=[container_json("i", cores="1Gi")],
        annotations={names.POLICY: "bestfit", names.CONTAINERS: "x", names.MODELS: ","},
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
    asking = [container_json(n, 1, c) for n, c in (("a", 60), ("b", None), ("c", 60))]
    judged = judge_request(pod_json(containers=asking))
    (complaint,) = judged.complaints
    assert complaint.startswith(
        f"the containers of a pod share one card, and {CORES} + "
        f"{CORES.replace('[0]', '[2]')}: 120 cores are neither"
    )
    assert judged.summed


@pytest.mark.parametrize(
    ("units", "cores", "pool", "told"),
    [
        (29, 1, POOL, []),
        (
            30,
            1,
            POOL,
            ["vcuda-memory: 30 units are asked, but the largest card has 29"],
        ),
        (58, 200, POOL, []),
        (59, 200, POOL, ["59 units are asked, but the 2 largest cards have 58"]),
        (
            1,
            1,
            CardPool(has_resource=False),
            ["no node of this cluster offers baidu.com/"],
        ),
        (None, None, CardPool(has_resource=False), []),
        (1, 1, UNKNOWN, []),
    ],
)
def test_a_pod_that_may_wait_for_long(
    units: int | None, cores: int | None, pool: CardPool, told: list[str]
) -> None:
    """A larger card may come; of several whole cards, all together count."""
    found = warnings_of(pod_json(units=units, cores=cores), pool)
    assert len(found) == len(told)
    assert all(words in text for words, text in zip(told, found, strict=True))


def test_a_misspelt_resource() -> None:
    """Such a pod would be Pending for ever."""
    pod = pod_json(units=1)
    assert list(warn_of_unknown_resources(pod)) == []
    pod["spec"]["containers"][0]["resources"]["limits"]["baidu.com/vcuda-mem"] = "1"
    (warning,) = warn_of_unknown_resources(pod)
    assert "baidu.com/vcuda-mem is not a known resource" in warning
    assert f"known are {names.CORE} and {names.MEMORY}" in warning


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


def variables(pod: Json, env_from: EnvFrom = "auto") -> list[str]:
    return list(deny_card_variables(pod, env_from))


def mounted(*paths: str, units: int | None = 1) -> list[str]:
    mounts = [{"name": "v", "mountPath": path} for path in paths]
    pod = pod_with([], units=units)
    pod["spec"]["containers"][-1]["volumeMounts"] = mounts
    return list(deny_mounts_over_share(pod))


TOLD, LIMITED = "tells a container its share in /", "limit a container's memory by /"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/vcuda", TOLD),
        ("/etc/vcuda/a.json", TOLD),
        ("//etc//vcuda/.", TOLD),
        ("/etc/x/../vcuda", TOLD),
        ("etc/vcuda", TOLD),
        ("/etc/ld.so.preload", LIMITED),
        ("/usr/lib/vcuda/libvcuda.so.1", LIMITED),
        ("/run/vcuda", LIMITED),
        ("/run/vcuda/region", LIMITED),
        ("/var/run/vcuda/region", LIMITED),
    ],
)
def test_a_volume_over_the_device_plugins(path: str, why: str) -> None:
    """kubelet would put it on top; ours is put on top of one mounted above."""
    (complaint,) = mounted("/data", path)
    assert complaint.startswith("spec.containers[1].volumeMounts[1].mountPath: ")
    assert why in complaint
    assert complaint.endswith("; mount the volume elsewhere")
    assert mounted(path, units=None) == []
    others = ("/etc", "/", "/etc/vcuda2", "/data/etc/vcuda", "/run", "/usr/lib")
    assert mounted(*others, "/etc/ld.so.preload.d", "/run/vcuda2") == []


@pytest.mark.parametrize("name", [names.PLACEMENT, names.ACTUAL, names.ISOLATION])
def test_annotations_that_others_write(name: str) -> None:
    """Whatever they say, and whether or not the pod asks for anything."""
    (complaint,) = deny_forged_annotations(pod_json(annotations={name: "{}"}))
    assert complaint.startswith(f'metadata.annotations["{name}"]: only the ')
    assert "remove it" in complaint
    assert (
        list(deny_forged_annotations(pod_json(annotations={names.POLICY: "spread"})))
        == []
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("CUDA_MPS_PIPE_DIRECTORY", True),
        ("NVIDIA_GPU_MEMORY_LIMIT", True),
        ("NVIDIA_GPU_MEMORY_REQUEST", True),
        ("VCUDA_CARDS", True),
        ("NVIDIA_DRIVER_CAPABILITIES", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("MY_VCUDA_CARDS", False),
    ],
)
@pytest.mark.parametrize("place", ["containers[1]", "initContainers[0]"])
@pytest.mark.parametrize("units", [1, None])
def test_the_card_variables(
    name: str, place: str, units: int | None, told: bool
) -> None:
    """In any container of such a pod, or one that asks nothing could have all cards."""
    env = [{"name": "A"}, {"name": name, "value": "all"}]
    found = variables(pod_with(env, units=units, kind=place[:-3]))
    assert bool(found) is told
    for complaint in found:
        assert complaint.startswith(f"spec.{place}.env[1]: only the vcuda ")
        assert f"may set {name}" in complaint


@pytest.mark.parametrize("value", ["void", "none", "", None])
def test_a_container_that_asks_nothing_may_say_so(value: str | None) -> None:
    """One that asks for a card would hide it from itself; a reference may be all."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]
    assert variables(pod_with(env, units=None)) == []
    assert len(variables(pod_with(env, units=1))) == 1
    env[0] |= {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}  # type: ignore[dict-item]
    assert len(variables(pod_with(env, units=None))) == 1
    plain = pod_json()
    plain["spec"]["containers"][0]["env"] = ALL
    assert variables(plain) == []


@pytest.mark.parametrize("runtime", [None, "nvidia", "kata"])
@pytest.mark.parametrize(
    ("rule", "told"), [("auto", True), ("deny", True), ("allow", False)]
)
def test_variables_from_elsewhere(
    rule: EnvFrom, runtime: str | None, *, told: bool
) -> None:
    """Whatever the RuntimeClass: NVIDIA's hook reads a memory limit under any."""
    pod = pod_with(env_from=[{"configMapRef": {"name": "a"}}], runtime=runtime)
    found = variables(pod, rule)
    assert bool(found) is told
    assert all(text.startswith("spec.containers[1].envFrom[0]: ") for text in found)
    assert variables(pod_with(env_from=[{}], units=None), rule) == []


@pytest.mark.parametrize("prefix", ["", "N", "NVIDIA_VISIBLE_", "CUDA_", "VCUDA_X"])
def test_a_prefix_can_make_them_harmless(prefix: str) -> None:
    """If no variable of that prefix is one of the card's."""
    (complaint,) = variables(pod_with(env_from=[{"prefix": prefix}]), "deny")
    assert "give it a prefix such as APP_" in complaint
    for other in ("APP_", "NVIDIA_DRIVER_"):
        assert variables(pod_with(env_from=[{"prefix": other}]), "deny") == []


def debugged(*containers: dict[str, Any]) -> Json:
    pod = pod_json(units=1)
    pod["spec"]["ephemeralContainers"] = list(containers)
    return pod


def test_a_debugging_container_must_not_either() -> None:
    """It would see every card of the node; one that is there cannot be changed."""
    bad = {"name": "a", "env": ALL}
    before, after = debugged(bad), debugged(bad, {"name": "b"})
    (complaint,) = deny_card_variables(after, "auto", pod_json(units=1))
    assert complaint.startswith("spec.ephemeralContainers[0].env[0]: ")
    assert list(deny_card_variables(after, "auto", before)) == []
    after = debugged({"name": "a", "envFrom": [{}]})
    assert len(list(deny_card_variables(after, "deny", pod_json(units=1)))) == 1
