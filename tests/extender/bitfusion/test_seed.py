"""Seed 004's three workloads, word for word, as far as a command that really runs."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from extender.bitfusion.translate import Translation, translate
from extender.pool import Pool
from gpushare.kube.cluster import Json
from tests.controlplane.bitfusionpods import BY_MEMORY, BY_PERCENT, DEPLOYMENT
from tests.extender.bitfusion.pods import rules

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
