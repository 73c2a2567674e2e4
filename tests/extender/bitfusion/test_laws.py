"""What holds of every pod and every rule: no crash, nothing lost, nothing twice."""

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.bitfusion.resources import BitfusionRules
from extender.bitfusion.translate import translate
from extender.pool import Pool
from gpushare.kube.cluster import Json
from tests.extender.bitfusion.pods import pod, rules

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
