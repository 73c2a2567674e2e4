"""The table ``tests/cases/bitfusion.yaml``, what holds for every pod, and seed 004."""

import copy
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from extender.bitfusion.filter import wishes
from extender.bitfusion.resources import BitfusionRules
from extender.bitfusion.translate import Translation, translate
from extender.pool import Pool
from extender.webhook.review import patch_between
from extender.webhook.rules import Rules, review
from gpushare.kube import names
from gpushare.kube.annotations import MOST_ENTRIES
from gpushare.kube.cluster import Json
from tests.controlplane.bitfusionpods import BY_MEMORY, BY_PERCENT, DEPLOYMENT
from tests.extender.bitfusion_pods import ALL, HALF, pod, rules

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
        "pool": Pool(**case.get("pool", {})),
    }
    chosen = rules(**case.get("set", {}))
    if case.get("review"):
        verdict = review(a_pod, mutating=True, rules=Rules(bitfusion=chosen), **common)
        return Translation(verdict.pod, verdict.denials, verdict.warnings)
    return translate(a_pod, rules=chosen, **common)


def assert_told(told: Sequence[str], expected: Sequence[str]) -> None:
    assert len(told) == len(expected), told
    for text, part in zip(told, expected, strict=True):
        assert part in text


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{one['row']}: {one['what']}" for one in CASES]
)
def test_a_row(case: Json) -> None:
    """The whole pod is compared; the one that came is never changed."""
    came = pod(case["pod"])
    before = copy.deepcopy(came)
    found = answer(case, came)
    assert_told(found.denials, case.get("denied", []))
    assert_told(found.warnings, case.get("warned", []))
    expected = pod(case["becomes"]) if "becomes" in case else before
    assert found.pod == expected
    assert came == before


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_a_second_time_nothing_happens(case: Json) -> None:
    """As with a webhook that is called again after another one."""
    once = answer(case, pod(case["pod"]))
    if once.denials or case.get("unchanged"):
        return
    again = answer(case, once.pod)
    assert again.pod == once.pod
    assert again.denials == ()


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_what_is_told_is_fit_to_be_read(case: Json) -> None:
    """A denial is one line; of a warning the API server may show no more than this."""
    found = answer(case, pod(case["pod"]))
    for text in (*found.denials, *found.warnings):
        assert text.isprintable()
    assert all(len(text) <= WARNING for text in found.warnings)


def test_no_row_is_forgotten() -> None:
    assert {one["row"] for one in CASES} >= ROWS


def test_every_case_says_what_becomes_of_it() -> None:
    """Else a case whose outcome was forgotten would pass as an unchanged pod."""
    for case in CASES:
        outcomes = [key for key in ("becomes", "denied", "unchanged") if key in case]
        assert len(outcomes) == 1, case["what"]


@pytest.mark.parametrize("case", CASES, ids=[one["what"] for one in CASES])
def test_what_comes_out_no_rule_denies(case: Json) -> None:
    """Those of all pods look at it next: at cores, units and annotations."""
    if "becomes" not in case:
        return
    verdict = review(
        answer(case, pod(case["pod"])).pod,
        namespace="apps",
        mutating=False,
        mode="",
        rules=Rules(),
        pool=Pool(),
    )
    assert verdict.denials == ()


AMOUNTS = st.one_of(
    st.none(),
    st.integers(-3, 300),
    st.sampled_from(
        ["1", "50", "100", "8000M", "8Gi", "8000", "0", "-1", "1.5", "2e1"]
    ),
    st.text(max_size=8),
)
NAMES = st.sampled_from(
    [
        "bitfusion.io/gpu-amount",
        "bitfusion.io/gpu-percent",
        "bitfusion.io/gpu-memory",
        "bitfusion.io/gpu",
        "bitfusion.io/other",
        "baidu.com/vcuda-core",
        "cpu",
    ]
)
PARTS = st.dictionaries(NAMES, AMOUNTS, max_size=4)
RIGHT = st.sampled_from(
    [
        None,
        {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": 50}},
        {"limits": {"bitfusion.io/gpu-amount": "2", "cpu": 1}},
        {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-memory": "8Gi"}},
    ]
)
"""Most of what is asked, so that most pods are indeed rewritten."""
PIECES = st.sampled_from(
    ["bitfusion", "run", "-n", "1", "-p", "0.5", "--", "--filter=a.b=c", "python a.py"]
)
WORDS = st.lists(
    st.one_of(
        PIECES,
        st.text(max_size=12),
        st.lists(PIECES, max_size=8).map(" ".join),
        st.text(alphabet="bitfusion run-np1'\"\\\n;$(", max_size=40),
    ),
    max_size=8,
)
WRONG = st.fixed_dictionaries(
    {},
    optional={
        "limits": st.one_of(st.none(), PARTS),
        "requests": st.one_of(st.none(), PARTS),
    },
)
CONTAINERS = st.fixed_dictionaries(
    {"resources": st.one_of(RIGHT, RIGHT, RIGHT, WRONG)},
    optional={
        "command": st.one_of(st.none(), WORDS),
        "args": st.one_of(st.none(), WORDS),
        "restartPolicy": st.sampled_from(["Always", None]),
        "env": st.just([{"name": "A"}, {"name": "B", "value": None}]),
    },
)
VALUES = st.one_of(
    st.sampled_from(["server.hostname=a device.name=b", "ubuntu18", "450"]),
    st.text(max_size=20),
)
ANNOTATIONS = st.fixed_dictionaries(
    {
        "auto-management/bitfusion": st.sampled_from(
            ["all", "ALL", "Yes", "injection", "none", "al"]
        )
    },
    optional={
        "auto-management/status": st.sampled_from(["", "x", "Injected"]),
        "bitfusion-client/os": VALUES,
        "bitfusion-client/version": VALUES,
        "bitfusion-client/filter": VALUES,
        "mine": VALUES,
    },
)
PODS = st.fixed_dictionaries(
    {
        "annotations": ANNOTATIONS,
        "containers": st.lists(CONTAINERS, min_size=1, max_size=3),
    },
    optional={
        "init": st.lists(CONTAINERS, max_size=2),
        "volumes": st.none(),
        "affinity": st.sampled_from([None, {}, {"nodeAffinity": None}]),
        "nodeSelector": st.none(),
    },
).map(pod)
RULES = st.builds(
    rules,
    st.sampled_from(["", "16000"]),
    st.sampled_from([None, "auto"]),
    strict=st.booleans(),
    quota=st.booleans(),
)
POOLS = st.sampled_from(
    [Pool(), Pool(63, 29, has_resource=True), Pool(has_resource=False)]
)
MODES = st.sampled_from(["", "all", "injection"])


@settings(deadline=None)
@given(PODS, RULES, POOLS, MODES)
def test_any_pod(a_pod: Json, chosen: BitfusionRules, pool: Pool, mode: str) -> None:
    """Never an error; what came stays as it came; a second time changes nothing."""
    before = copy.deepcopy(a_pod)
    found = translate(a_pod, namespace="apps", mode=mode, rules=chosen, pool=pool)
    assert a_pod == before
    if found.denials:
        assert found.pod == before
    for text in (*found.denials, *found.warnings):
        assert text.isprintable()
    if found.pod == before:
        return
    again = translate(found.pod, namespace="apps", mode=mode, rules=chosen, pool=pool)
    assert again.pod == found.pod
    assert_kept(before, found.pod)


def assert_kept(before: Json, after: Json) -> None:
    """Insist that nothing of the pod's own was lost but what was asked of Bitfusion."""
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


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
@pytest.mark.parametrize("mode", ["all", "injection"])
def test_without_metadata(metadata: Json, mode: str) -> None:
    """A namespace's label translates it all the same, and the patch holds."""
    spec = pod({"containers": [{"command": ["a b"], "resources": HALF}]})["spec"]
    came = {**metadata, "spec": spec}
    before = copy.deepcopy(came)
    found = review(
        came,
        namespace="apps",
        mutating=True,
        mode=mode,
        rules=Rules(bitfusion=rules()),
        pool=Pool(),
    )
    assert found.denials == ()
    assert found.pod["metadata"]["annotations"]["auto-management/status"] == "injected"
    assert apply_patch(came, patch_between(came, found.pod)) == found.pod
    assert came == before


@pytest.mark.parametrize(
    ("key", "value", "annotation"),
    [
        ("device.name", "T{}", names.MODELS),
        ("device.id", "GPU-{:08x}", names.UUIDS),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_more_cards_than_a_list_may_name(
    key: str, value: str, annotation: str, *, strict: bool
) -> None:
    """Told by the word that the user wrote, and not by our annotation."""
    words = [f"{key}={value.format(n)}" for n in range(MOST_ENTRIES + 1)]
    told = f"Filters by {key} after the first 32 are left out"
    came = pod(
        {
            "annotations": {**ALL, FILTER: " ".join(words)},
            "containers": [{"resources": HALF}],
        }
    )
    found = review(
        came,
        namespace="apps",
        mutating=True,
        mode="",
        rules=Rules(bitfusion=rules(strict=strict)),
        pool=Pool(),
    )
    if strict:
        assert found.denials == (told,)
        return
    assert found.warnings == (told,)
    assert found.denials == ()
    listed = found.pod["metadata"]["annotations"][annotation].split(",")
    assert len(listed) == MOST_ENTRIES


def test_a_uuid_longer_than_any_card_has() -> None:
    """It is told as the filter's, before our own rules look at it."""
    (told,) = wishes([f"device.id=GPU-{'0' * 200}"], Pool()).complaints
    assert "is left out: it is not a UUID" in told


PYTHON = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n'
"""Tells what the benchmark was called with."""
CALLED = [
    "/benchmark/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py",
    "--local_parameter_device=gpu",
    "--batch_size=32",
    "--model=inception3",
]


def pod_of(text: str) -> Json:
    """The pod, or the one that a Deployment makes."""
    loaded: Json = yaml.safe_load(text)
    if loaded["kind"] == "Pod":
        return loaded
    template: Json = loaded["spec"]["template"]
    return template


def seeded(text: str) -> Translation:
    """Translate it, as the webhook of seed 004 is set: TOTAL_GPU_MEMORY 16000."""
    return translate(
        pod_of(text),
        namespace="tensorflow-benchmark",
        mode="",
        rules=rules("16000"),
        pool=Pool(),
    )


@pytest.mark.parametrize(
    ("text", "cores", "units"),
    [(BY_PERCENT, "50", "29"), (BY_MEMORY, "50", "30"), (DEPLOYMENT, "30", "17")],
    ids=["gpu-percent", "gpu-memory", "Deployment"],
)
def test_a_workload(text: str, cores: str, units: str, tmp_path: Path) -> None:
    """Unchanged YAML; its command could not be run before, and runs now."""
    found = seeded(text)
    assert (found.denials, found.warnings) == ((), ())
    before, after = pod_of(text), found.pod
    (was,), (is_now,) = before["spec"]["containers"], after["spec"]["containers"]
    amounts = {"baidu.com/vcuda-core": cores, "baidu.com/vcuda-memory": units}
    assert is_now["resources"] == {"limits": amounts, "requests": amounts}
    assert after["metadata"]["annotations"] == {
        **before["metadata"]["annotations"],
        "auto-management/status": "injected",
    }
    for key in ("image", "volumeMounts", "name"):
        assert is_now[key] == was[key]
    assert after["spec"]["volumes"] == before["spec"]["volumes"]

    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o555)
    env = {"PATH": f"{tmp_path}:{os.defpath}"}
    with pytest.raises(FileNotFoundError):
        subprocess.run(was["command"], env=env, check=True)
    assert is_now["command"][0] == "/bin/bash"
    done = subprocess.run(
        is_now["command"], env=env, check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == CALLED


def test_two_halves_fit_one_card() -> None:
    """Cores and units of the first workload, twice, on a card of 16000 MB."""
    limits = seeded(BY_PERCENT).pod["spec"]["containers"][0]["resources"]["limits"]
    assert 2 * int(limits["baidu.com/vcuda-core"]) <= 100
    assert 2 * int(limits["baidu.com/vcuda-memory"]) <= 16_000_000_000 // (256 << 20)
