"""What a pod must not bring along, or it would lift its own limit."""

from collections.abc import Sequence
from typing import Any

import pytest

from extender.webhook.validate import EnvFrom, card_variables, covered, forged
from gpushare.kube import names
from gpushare.kube.cluster import Json
from tests.builders import container_json, pod_json


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
