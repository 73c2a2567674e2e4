"""Pods at random: valid ones, wrong ones, for Bitfusion, and JSON that is no pod."""

import json
from typing import Any

from hypothesis import strategies as st

from gpushare.kube import names
from tests.webhook.bitfusion_pods import HALF

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["", "a", "0", "void", "all", "nvidia", "x y", "1", "é\u00a0"]
)
QUANTITIES = st.sampled_from(
    ["0", "1", "4", "50", "99", "100", "101", "1.5", "8000M", "8Gi", "-1", "1k", "x"]
) | st.one_of(st.sampled_from([0, 1, 50, None, True, 1.5, [], {}]), st.text(max_size=8))
RESOURCES = st.dictionaries(
    st.sampled_from(
        [
            names.CORE,
            names.MEMORY,
            names.MEMORY_MIB,
            "baidu.com/vcuda-x",
            "bitfusion.io/gpu",
            "bitfusion.io/gpu-amount",
            "bitfusion.io/gpu-percent",
            "bitfusion.io/gpu-memory",
            "nvidia.com/gpu",
            "cpu",
        ]
    ),
    QUANTITIES,
    max_size=4,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            names.CONTAINERS,
            names.POLICY,
            names.MODELS,
            names.UUIDS,
            names.PLACEMENT,
            "auto-management/bitfusion",
            "auto-management/status",
            "bitfusion-client/filter",
            "bitfusion-client/os",
        ]
    ),
    st.sampled_from(
        [
            "apart",
            "spread",
            "all",
            "injection",
            "injected",
            "none",
            "",
            "Tesla P4",
            "server.addr=10.0.0.1",
            "device.name=T4,server.hostname=a b",
        ]
    )
    | TEXTS,
    max_size=4,
)
ENV = st.fixed_dictionaries(
    {"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "VCUDA_CORES"])},
    optional={"value": TEXTS | st.none(), "valueFrom": st.just({}) | st.none()},
)
RIGHT = st.sampled_from(
    [
        HALF,
        {"limits": {"bitfusion.io/gpu-amount": "2", "cpu": 1}},
        {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-memory": "8Gi"}},
    ]
)
"""What Bitfusion's pods ask, so that many are indeed rewritten."""
COMMAND = st.lists(
    st.sampled_from(
        [
            "python a.py",
            "/bin/bash",
            "-c",
            "bitfusion run -n 1 -p 0.5 -- python a.py",
            "bitfusion run -n 2",
            "bitfusion",
            "run",
            "--",
            "'",
            "",
        ]
    )
    | st.text(alphabet="bitfusion run-np1'\"\\\n;$(", max_size=40),
    max_size=4,
)
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c"])},
    optional={
        "resources": st.none()
        | st.fixed_dictionaries(
            {}, optional={"limits": RESOURCES, "requests": RESOURCES}
        )
        | RESOURCES.map(lambda one: {"limits": one, "requests": dict(one)})
        | RIGHT,
        "env": st.none() | st.lists(ENV, max_size=3),
        "envFrom": st.lists(
            st.fixed_dictionaries({}, optional={"prefix": TEXTS}), max_size=2
        ),
        "command": st.none() | COMMAND,
        "args": st.none() | COMMAND,
        "restartPolicy": st.sampled_from([None, "Always"]),
        "volumeMounts": st.just([{"name": "v", "mountPath": "/usr/bin/bitfusion"}]),
    },
)


def _as_sent(pod: Any) -> Any:
    """Copy a pod, because samples are shared: a patch of one place would change two."""
    return json.loads(json.dumps(pod))


PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"annotations": st.none() | ANNOTATIONS, "name": TEXTS}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(CONTAINER, max_size=3),
                "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
                "ephemeralContainers": st.lists(CONTAINER, max_size=2),
                "volumes": st.just([{"name": "v"}]) | st.none(),
                "runtimeClassName": TEXTS | st.none(),
                "schedulerName": TEXTS | st.none(),
                "nodeSelector": st.none() | st.just({"a": "b"}),
                "affinity": st.none() | st.just({"nodeAffinity": {}}),
            },
        ),
    }
).map(_as_sent)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS
KEYS = st.sampled_from(
    ["metadata", "spec", "annotations", "containers", "env", "resources", "limits"]
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4)
    ),
    max_leaves=20,
)
