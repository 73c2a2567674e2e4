"""The table ``tests/cases/bitfusion.yaml``, what holds for every pod, and seed 004."""

import copy
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from gpushare.kube import names
from gpushare.kube.annotations import MOST_ENTRIES
from gpushare.kube.cluster import Json
from tests.controlplane.bitfusionpods import BY_MEMORY, BY_PERCENT, DEPLOYMENT
from tests.webhook.bitfusion_pods import ALL, HALF, pod, rules
from tests.webhook.random_pods import PODS, RIGHT
from webhook.bitfusion.filter import read_conditions
from webhook.bitfusion.resources import BitfusionRules
from webhook.bitfusion.translate import Translation, translate_pod
from webhook.pool import CardPool
from webhook.rules.review import ReviewSettings, patch_between, review_pod

HERE = Path(__file__).parents[2]
TABLE = yaml.safe_load((HERE / "cases" / "bitfusion.yaml").read_text())
CASES = TABLE["cases"]
ROWS = {
    *(f"M{number}" for number in range(1, 19)),
    *(f"V{number}" for number in range(1, 9)),
    "Q1",
    "Q2",
}
WARNING = 120


def answer(case: Json, a_pod: Json) -> Translation:
    common: dict[str, Any] = {
        "namespace": case.get("namespace", "apps"),
        "mode": case.get("mode", ""),
        "pool": CardPool(**case.get("pool", {})),
    }
    chosen = rules(**case.get("set", {}))
    if case.get("review"):
        verdict = review_pod(
            a_pod, mutating=True, rules=ReviewSettings(bitfusion=chosen), **common
        )
        return Translation(verdict.pod, verdict.denials, verdict.warnings)
    return translate_pod(a_pod, rules=chosen, **common)


def assert_told(told: Sequence[str], expected: Sequence[str]) -> None:
    assert len(told) == len(expected), told
    for text, part in zip(told, expected, strict=True):
        assert part in text


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{one['row']}: {one['what']}" for one in CASES]
)
def test_a_row(case: Json) -> None:
    """The whole pod is compared; a second time nothing happens, and no rule denies."""
    came = pod(case["pod"])
    found = answer(case, came)
    assert_told(found.denials, case.get("denied", []))
    assert_told(found.warnings, case.get("warned", []))
    assert_readable(found)
    assert len([key for key in ("becomes", "denied", "unchanged") if key in case]) == 1
    assert found.pod == pod(case.get("becomes", case["pod"]))
    assert came == pod(case["pod"])
    if "becomes" not in case:
        return
    again = answer(case, found.pod)
    assert (again.pod, again.denials) == (found.pod, ())
    common: Json = {"namespace": "apps", "mode": "", "pool": CardPool()}
    assert (
        review_pod(found.pod, mutating=False, rules=ReviewSettings(), **common).denials
        == ()
    )


def assert_readable(found: Translation) -> None:
    """A denial is one line; of a warning the API server may show no more than this."""
    assert all(text.isprintable() for text in (*found.denials, *found.warnings))
    assert all(len(text) <= WARNING for text in found.warnings)


def test_no_row_is_forgotten() -> None:
    assert {one["row"] for one in CASES} >= ROWS


@st.composite
def asking_pods(draw: st.DrawFn) -> Json:
    """Pods of which most are indeed rewritten."""
    made: Json = draw(PODS)
    chosen = draw(st.sampled_from(["all", "ALL", "Yes", "injection", "none", "al"]))
    notes = made["metadata"].get("annotations") or {}
    made["metadata"]["annotations"] = notes | {"auto-management/bitfusion": chosen}
    for one in made["spec"].setdefault("containers", [{"name": "a"}]):
        one["resources"] = draw(RIGHT | RIGHT | st.just(one.get("resources")))
    return made


RULES = st.builds(
    rules,
    st.sampled_from(["", "16000"]),
    st.sampled_from([None, "auto"]),
    strict=st.booleans(),
    quota=st.booleans(),
)
POOLS = st.sampled_from(
    [CardPool(), CardPool(63, 29, has_resource=True), CardPool(has_resource=False)]
)
MODES = st.sampled_from(["", "all", "injection"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asking_pods(), RULES, POOLS, MODES)
def test_any_pod(
    a_pod: Json, chosen: BitfusionRules, pool: CardPool, mode: str
) -> None:
    """Never an error; what came stays as it came; a second time changes nothing."""
    before = copy.deepcopy(a_pod)
    how: Json = {"namespace": "apps", "mode": mode, "rules": chosen, "pool": pool}
    found = translate_pod(a_pod, **how)
    assert a_pod == before
    assert all(text.isprintable() for text in (*found.denials, *found.warnings))
    if found.denials or found.pod == before:
        assert found.pod == before
        return
    assert translate_pod(found.pod, **how).pod == found.pod
    assert_kept(before, found.pod)


def assert_kept(before: Json, after: Json) -> None:
    kept = dict(before["metadata"].get("annotations") or {})
    kept.pop("auto-management/status", None)
    assert after["metadata"]["annotations"].items() >= kept.items()
    for kind in ("initContainers", "containers"):
        was, now = before["spec"].get(kind) or [], after["spec"].get(kind) or []
        assert [one["name"] for one in was] == [one["name"] for one in now]
        for old, new in zip(was, now, strict=True):
            asked = (new.get("resources") or {}).get("limits") or {}
            left = [name for name in asked if name.startswith("bitfusion.io/gpu-")]
            assert left == []
            limits = (old.get("resources") or {}).get("limits") or {}
            assert asked.get("cpu") == limits.get("cpu")


FILTER = "bitfusion-client/filter"


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}])
@pytest.mark.parametrize("mode", ["all", "injection"])
def test_without_metadata(metadata: Json, mode: str) -> None:
    spec = pod({"containers": [{"command": ["a b"], "resources": HALF}]})["spec"]
    came = {**metadata, "spec": spec}
    before = copy.deepcopy(came)
    found = answer({"mode": mode, "review": True}, came)
    assert found.denials == ()
    assert found.pod["metadata"]["annotations"]["auto-management/status"] == "injected"
    assert apply_patch(came, patch_between(came, found.pod)) == found.pod
    assert came == before


@pytest.mark.parametrize(
    ("key", "value", "annotation"),
    [("device.name", "T{}", names.MODELS), ("device.id", "GPU-{:08x}", names.UUIDS)],
)
def test_more_cards_than_a_list_may_name(key: str, value: str, annotation: str) -> None:
    """Told by the word that the user wrote, and not by our annotation."""
    words = [f"{key}={value.format(n)}" for n in range(MOST_ENTRIES + 1)]
    told = f"Filters by {key} after the first 32 are left out"
    notes = {**ALL, FILTER: " ".join(words)}
    came = pod({"annotations": notes, "containers": [{"resources": HALF}]})
    strict = answer({"set": {"strict": True}, "review": True}, came)
    assert strict.denials == (told,)
    found = answer({"review": True}, came)
    assert (found.warnings, found.denials) == ((told,), ())
    listed = found.pod["metadata"]["annotations"][annotation].split(",")
    assert len(listed) == MOST_ENTRIES


def test_a_uuid_longer_than_any_card_has() -> None:
    (told,) = read_conditions([f"device.id=GPU-{'0' * 200}"], CardPool()).complaints
    assert "is left out: it is not a UUID" in told


PYTHON = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n'
"""Tells what the benchmark was called with."""
CALLED = [
    "/benchmark/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py",
    "--local_parameter_device=gpu",
    "--batch_size=32",
    "--model=inception3",
]


@pytest.mark.parametrize(
    ("text", "cores", "units"),
    [(BY_PERCENT, "50", "29"), (BY_MEMORY, "50", "30"), (DEPLOYMENT, "30", "17")],
    ids=["gpu-percent", "gpu-memory", "Deployment"],
)
def test_a_workload(text: str, cores: str, units: str, tmp_path: Path) -> None:
    """Seed 004's YAML and TOTAL_GPU_MEMORY; its command could not be run before."""
    loaded = yaml.safe_load(text)
    before = loaded if loaded["kind"] == "Pod" else loaded["spec"]["template"]
    found = answer({"namespace": "tensorflow-benchmark"}, before)
    assert (found.denials, found.warnings) == ((), ())
    (was,), (is_now,) = before["spec"]["containers"], found.pod["spec"]["containers"]
    amounts = {"baidu.com/vcuda-core": cores, "baidu.com/vcuda-memory": units}
    assert is_now == {
        **was,
        "command": is_now["command"],
        "resources": {"limits": amounts, "requests": amounts},
    }
    own = before["metadata"]["annotations"]
    done = {**own, "auto-management/status": "injected"}
    assert found.pod["metadata"]["annotations"] == done
    assert found.pod["spec"]["volumes"] == before["spec"]["volumes"]

    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o555)
    env = {"PATH": f"{tmp_path}:{os.defpath}"}
    with pytest.raises(FileNotFoundError):
        subprocess.run(was["command"], env=env, check=True)
    assert is_now["command"][0] == "/bin/bash"
    told = subprocess.check_output(is_now["command"], env=env, text=True)
    assert told.splitlines() == CALLED
