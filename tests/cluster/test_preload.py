"""Tier preload: a program that takes all it gets ends at its container's share.

The containers are of our own image, because the library needs the GNU C library, and
the cards' driver is a stand-in that gives each process 16 GiB.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.exporter import Exporter, process_of
from tests.cluster.manifests import TWO_OF_4_GIB, container, pod
from tests.cluster.seen import ALLOCATION, allocation, inside
from tests.cluster.site import Site
from tests.isolation.build import (
    LIBRARY,
    build_driver,
    build_hog,
    build_library,
    needs_compiler,
)
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

TOLD = "/etc/ld.so.preload"
REGION = "/run/vcuda/region"
HOG = "/hog/hog 64"
ENDS = (
    f"trap exit TERM; rm -f /tmp/end; {HOG} wait & "
    "until [ -e /tmp/end ]; do sleep 0.2; done"
)
"""Takes all memory and keeps it; ends with its container, which ``/tmp/end`` ends."""
NOBODY = {"runAsUser": 65532, "readOnlyRootFilesystem": True}


@pytest.fixture(scope="module")
def hog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and the stand-in for the driver."""
    needs_compiler()
    folder = tmp_path_factory.mktemp("hog")
    build_driver(folder)
    build_hog(folder)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def limited(site: Site, tmp_path: Path) -> Iterator[Site]:
    """Two cards of 16 units, on a node whose device plugin has the library."""
    needs_compiler()
    gpus = site.gpus["cp"]
    gpus.set_cards(TWO_OF_4_GIB)
    (tmp_path / "vcuda").mkdir()
    build_library(tmp_path / "vcuda" / LIBRARY)
    gpus.image = tmp_path
    with gpus.reconfigured(ISOLATION="preload"):
        yield site
        site.clear()
    gpus.image = None


def greedy(name: str, units: int | None, cores: int, image: str, hog: Path) -> Json:
    """A pod whose program takes all memory that it gets, for a user without rights.

    It has volumes of its own above what the device plugin mounts.
    """
    one = container(
        "main",
        units,
        cores,
        script=ENDS,
        image=image,
        securityContext=NOBODY,
        env=[{"name": "LD_LIBRARY_PATH", "value": "/hog"}],
        volumeMounts=[
            {"name": "hog", "mountPath": "/hog", "readOnly": True},
            {"name": "empty", "mountPath": "/run", "subPath": "run"},
            {"name": "empty", "mountPath": "/tmp", "subPath": "tmp"},
        ],
    )
    volumes = [
        {"name": "hog", "hostPath": {"path": str(hog)}},
        {"name": "empty", "emptyDir": {}},
    ]
    return pod(name, one, volumes=volumes)


def said(site: Site, name: str) -> list[str]:
    """What the program of a pod's present container has said; two lines."""

    def logged() -> list[str]:
        return site.cluster.try_kubectl("logs", name).stdout.splitlines()

    return wait_until(
        logged, f"{name} to be told no", 60, accept=lambda lines: len(lines) >= 2
    )


def full(mib: int) -> list[str]:
    """What it says with so much as its share, of which its context has 256 MiB."""
    shown = f"shown {mib} of {mib} MiB, code 0"
    return [shown, f"held {mib - 256} MiB, refused with 2"]


def test_a_share_is_a_share(limited: Site, app_image: str, hog: Path) -> None:
    """And a whole card is its pod's, without a library that counts."""
    site = limited
    site.create(greedy("first", 12, 1, app_image, hog))
    assert said(site, "first") == full(12 * 256)
    # Each further program of the container finds nothing left.
    env = ("env", "LD_LIBRARY_PATH=/hog", "/hog/hog", "64")
    assert inside(site, "first", *env).splitlines() == [
        f"shown 0 of {12 * 256} MiB, code 0",
        "held 0 MiB, refused with 2",
    ]
    # Its neighbour on the same card, which is root, has all of its own share.
    neighbour = greedy("neighbour", 4, 1, app_image, hog)
    neighbour["spec"]["containers"][0]["securityContext"] = {}
    site.create(neighbour, greedy("whole", None, 100, app_image, hog))
    assert said(site, "neighbour") == full(4 * 256)
    cards = {name: card_inside(site, name) for name in ("first", "neighbour", "whole")}
    assert cards["first"] == cards["neighbour"] != cards["whole"]
    keeps_its_limit(site, "neighbour")
    assert said(site, "whole")[1] == "held 16384 MiB, refused with 2"
    assert '"isolation": "none"' in inside(site, "whole", "cat", ALLOCATION)
    assert "vcuda" not in inside(site, "whole", "sh", "-c", f"cat {TOLD} || true")

    # A restarted container has its whole share again, and the other one kept its own.
    inside(site, "first", "touch", "/tmp/end")
    wait_until(
        lambda: restarts(site, "first") == 1 and ready(site, "first"),
        "first to run again",
        60,
    )
    assert said(site, "first") == full(12 * 256)
    assert inside(site, "neighbour", *env).splitlines()[1] == (
        "held 0 MiB, refused with 2"
    )


def test_the_exporter_says_who_is_held(
    limited: Site, app_image: str, hog: Path
) -> None:
    """By real PIDs of the host and of containers; NVML's figures are the stub's.

    A shell has the library too, and uses the card in a way that the library does not
    see: what a program of musl, or one that uses Vulkan, does.
    """
    site, gpus = limited, limited.gpus["cp"]
    site.create(*(greedy(name, 4, 1, app_image, hog) for name in ("held", "escapes")))
    assert said(site, "held") == said(site, "escapes") == full(4 * 256)
    uuid = {name: card_inside(site, name) for name in ("held", "escapes")}
    for name, card in uuid.items():
        process = process_of(gpus.node, site.get("pod", name), "hog")
        gpus.driver.process(card, process, mib=4 * 256 + 300)
    shell = process_of(gpus.node, site.get("pod", "escapes"), "sh")
    gpus.driver.process(uuid["escapes"], shell, mib=300)
    exporter = Exporter(gpus)
    exporter.start()
    try:
        wait_until(
            lambda: held_by(exporter) == {"held": 1, "escapes": 0}, "verdicts", 60
        )
    finally:
        exporter.stop()


def held_by(exporter: Exporter) -> dict[str, float]:
    """What the exporter says of each pod; nothing while it does not answer."""
    try:
        with urlopen(f"http://{exporter.address}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
    except OSError:
        return {}
    return {
        one.labels["PodName"]: one.value
        for family in families
        for one in family.samples
        if one.name == "vcuda_container_held"
    }


def keeps_its_limit(site: Site, name: str) -> None:
    """Nothing inside can be taken away by root, as long as it may not mount.

    Nor does it get any of the node's disk by the one file that it can open.
    """
    shell = f"for f in {TOLD} /etc/vcuda/limits; do echo x > $f; done"
    tried = inside(site, name, "sh", "-c", f"({shell}; umount {TOLD}) 2>&1 || true")
    assert tried.count("Read-only file system") == 2
    assert inside(site, name, "cat", TOLD).strip() == f"/usr/lib/vcuda/{LIBRARY}"
    grow = f"truncate -s 20G {REGION}; stat -c '%F %s %b' {REGION}"
    tried = inside(site, name, "sh", "-c", f"({grow}) 2>&1")
    assert "Invalid argument" in tried
    assert tried.splitlines()[-1] == "fifo 0 0"


def card_inside(site: Site, name: str) -> str:
    (card,) = allocation(inside(site, name, "cat", ALLOCATION))
    return card


def restarts(site: Site, name: str) -> int:
    (status,) = site.get("pod", name)["status"]["containerStatuses"]
    return int(status["restartCount"])


def ready(site: Site, name: str) -> bool:
    (status,) = site.get("pod", name)["status"]["containerStatuses"]
    return bool(status["ready"])
