"""The hard limits of prepared claims, beside those of classic pods."""

import json
import os
from pathlib import Path

import pytest

from deviceplugin.allocation.cdi import HOOK
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from tests.builders import container_json, pod_json, with_claims
from tests.deviceplugin.allocation.test_isolation import prepare as with_limits
from tests.deviceplugin.dra.dra_fixture import DraNode, env_of, host_path, result
from tests.deviceplugin.node_fixture import NODE, UUIDS, found_card
from tests.machine import needs

MACHINE = "x86_64"


def limited(folder: Path) -> DraNode:
    """One card of 29 units."""
    return DraNode(folder, found_card(0), settings=with_limits(folder))


def test_tier_driver(tmp_path: Path) -> None:
    """The limit is the share; a whole card has none."""
    with limited(tmp_path) as node:
        node.cdi = tmp_path / "cdi"
        claim = node.claim("c", units=10)
        node.prepare(claim)
        said = env_of(node.specification(claim))
        assert said["NVIDIA_GPU_MEMORY_LIMIT"] == str(10 * 256)
        assert said["NVIDIA_GPU_MEMORY_REQUEST"] == "0"
        [device] = node.specification(claim)["devices"]
        [hook] = device["containerEdits"]["hooks"]
        bundle = tmp_path / f"vcuda/claims/{claim['metadata']['uid']}/card/.bundle"
        assert hook["args"][-3:] == [str(bundle), "/hook", HOOK]
        env = json.loads((bundle / "config.json").read_text())["process"]["env"]
        assert "NVIDIA_GPU_MEMORY_LIMIT=2560" in env
        node.unprepare(claim)
        whole = node.claim("whole", units=29, cores=100)
        assert not node.prepare_one(whole).error
        assert "NVIDIA_GPU_MEMORY_LIMIT" not in env_of(node.specification(whole))


def test_pods_name_the_tier_of_their_claim(tmp_path: Path) -> None:
    """As a classic pod does; it is known also after a restart."""

    def tier(of: str) -> str | None:
        node.serving.reporter.catch_up()
        notes = node.pod(of)["metadata"].get("annotations", {})
        return notes.get(names.ISOLATION)  # type: ignore[no-any-return]

    with limited(tmp_path) as node:
        claim, whole = node.claim("c", units=10), node.claim("w", units=29, cores=100)
        for name, use in (("p", "c"), ("whole", "w"), ("waits", "later")):
            node.pod_with(name, {"main": use})
        node.prepare(claim)
        assert tier("p") == "driver"
        assert tier("waits") is None
        node.end()
        node.cluster.annotate(Kind.PODS, "default", "p", {names.ISOLATION: None})
        node.start()
        assert tier("p") == "driver"
        node.unprepare(claim)
        node.prepare(whole)
        assert tier("whole") is None


def test_containers_that_would_each_have_all(tmp_path: Path) -> None:
    """NVIDIA's limit is of a container, so two together could take twice the share."""
    with limited(tmp_path) as node:
        pod = pod_json("p", init=[container_json("first")], node=NODE)
        pod["spec"]["containers"] += [container_json("other")]
        uses = {"first": "c", "main": "c", "other": "c"}
        uid = node.cluster.create(Kind.PODS, with_claims(pod, uses))["metadata"]["uid"]
        claim = node.claim("c", units=10, users={"p": uid})
        said = node.prepare_one(claim).error
        assert "containers p/main, p/other use request card together" in said
        node.cluster.delete(Kind.PODS, "default", "p", grace_period_s=0)
        pod = pod_json("p", init=[container_json("first")], node=NODE)
        pod["spec"]["containers"] += [container_json("other")]
        uses = {"first": "c2", "main": "c2", "other": "c2/another"}
        node.cluster.create(Kind.PODS, with_claims(pod, uses))
        uid = node.pod("p")["metadata"]["uid"]
        claim = node.claim("c2", units=10, users={"p": uid})
        assert not node.prepare_one(claim).error


@pytest.mark.parametrize("first", [(5, 10), (29, 100)], ids=["part", "whole"])
def test_a_limit_is_for_one_card(tmp_path: Path, first: tuple[int, int]) -> None:
    """NVIDIA's limit is of all cards together, so it would hold on none of them.

    A whole card beside a part of another is a part.
    """
    settings = with_limits(tmp_path)
    with DraNode(tmp_path, found_card(0), found_card(1), settings=settings) as node:
        results = [
            result(card, units=units, cores=cores)
            for card, (units, cores) in enumerate((first, (5, 10)))
        ]
        claim = node.claim_with("c", {"devices": {"results": results}})
        assert "share of 2 cards" in node.prepare_one(claim).error


def test_tier_preload(tmp_path: Path) -> None:
    """The library, its limit, and a region that every user of the container can use."""
    needs(os.uname().machine == MACHINE, MACHINE, "use another machine")
    settings = with_limits(tmp_path) | {"isolation": "preload"}
    with DraNode(tmp_path, found_card(0), settings=settings) as node:
        node.cdi = tmp_path / "cdi"
        claim = node.claim("c", units=10)
        node.prepare(claim)
        said = node.specification(claim)
        library = host_path(said, "/usr/lib/vcuda/libvcuda.so.1")
        assert library.read_bytes() == b"the library"
        assert host_path(said, "/etc/ld.so.preload").is_file()
        region = host_path(said, "/run/vcuda/region")
        assert region.is_fifo()
        assert region.stat().st_mode & 0o777 == 0o666
        limits = host_path(said, "/etc/vcuda") / "limits"
        assert limits.read_text() == f"vcuda-limits 2\ncard {UUIDS[0]} 2560 256\n"
        # A container that runs keeps what it has counted.
        region.chmod(0o606)
        node.prepare(claim)
        assert region.stat().st_mode & 0o777 == 0o606
