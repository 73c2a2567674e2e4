"""Seed 001, one machine with one card, done literally."""

from tests.cluster.site import Site, deployment
from tests.nvml.driver import StubCard
from tests.testbed.waiting import wait_until

RTX_3090 = StubCard(
    "GPU-2b4e7c11-0d63-4f0e-9d4b-8a1f0c5e7a92", memory_mib=24259, model="RTX 3090"
)
APPS = ("nvidia-cuda11-base-1", "nvidia-cuda11-base-2", "nvidia-cuda11-base-3")


def test_three_apps_share_it(site: Site) -> None:
    """94 units; apps of 50, 40 and 1 run, and see the one card."""
    site.gpus["cp"].set_cards([RTX_3090])
    assert site.allocatable("cp") == (100, 94)
    site.create(*(deployment(a, u) for a, u in zip(APPS, (50, 40, 1), strict=True)))
    wait_until(lambda: site.ready(*APPS), "all three apps", 120)
    for app in APPS:
        assert site.visible(site.pod_of(app)) == [RTX_3090.uuid]
