"""A short ``make soak``: pods and claims live and die while parts are killed."""

import secrets
from dataclasses import replace

import pytest

from tests.soak.play import Form
from tests.soak.run import Plan, soak
from tests.soak.site import site
from tests.testbed.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane

PLAN = Plan(seconds=40.0, seed=0, kill_every_s=4.0, at_once=100)


def test_soak(plane: ControlPlane, space: str) -> None:
    """No card over-committed at any moment, no unit leaked, no pod without a verdict.

    The dice are new each time: the seed and the kills stand in what a failure says.
    """
    plan = replace(PLAN, seed=secrets.randbelow(1_000_000))
    with site(plane, plan.seed) as found:
        forms = {Form.SHARE, Form.APART}
        forms |= {Form.CLAIM} if found.claims else set()
        report = soak(found, space, plan)
    assert {"kube-apiserver", "extender", "kube-scheduler"} <= set(report.kills)
    assert {"placed", "refused"} <= set(report.ended)
    assert {form.value for form in forms} == set(report.placed)
    assert report.lists > 1
    assert report.fullest > 0.3
