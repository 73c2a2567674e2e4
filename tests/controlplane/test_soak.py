"""A short ``make soak``: pods live and die while every part is killed in turn."""

import secrets
from dataclasses import replace

import pytest

from tests.soak.run import Plan, soak
from tests.soak.site import site
from tests.testbed.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane

PLAN = Plan(seconds=40.0, seed=0, kill_every_s=4.0, at_once=100)


def test_soak(plane: ControlPlane, space: str) -> None:
    """No card over-committed at any moment, no unit leaked, no pod without a verdict.

    The dice are new each time: the seed and the kills stand in what a failure says.
    """
    plan = replace(PLAN, seed=int(__import__('os').environ.get('SEED') or secrets.randbelow(1_000_000)))
    with site(plane, plan.seed) as found:
        report = soak(found, space, plan)
    assert {"kube-apiserver", "extender", "kube-scheduler"} <= set(report.kills)
    assert {"placed", "refused"} <= set(report.ended)
    assert report.lists > 1
    assert report.fullest > 0.3
