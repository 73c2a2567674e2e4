"""Why a pod stays where it is, by its kind and beside a waiting pod."""

from dataclasses import replace

import pytest

from gpushare.domain.eviction.movable import (
    ALLOWABLE,
    DAEMON_SETS,
    JOBS,
    SEVERAL_CARDS,
    MoveCandidate,
    PrioritiesAndBudgets,
    why_pod_stays,
)
from gpushare.domain.eviction.preemption import Budget, EvictionFacts
from gpushare.domain.model import PodRef
from tests.builders import ref

POD = MoveCandidate("ReplicaSet", cards=1)


@pytest.mark.parametrize(
    ("pod", "allowed_by", "reason"),
    [
        (POD, None, ""),
        (replace(POD, controller="StatefulSet", budgets=1), None, ""),
        (replace(POD, controller=""), None, "without a controller"),
        (replace(POD, controller="Node"), None, "that are static"),
        (replace(POD, controller="DaemonSet"), DAEMON_SETS, "of DaemonSets"),
        (replace(POD, controller="Job"), JOBS, "of Jobs"),
        (replace(POD, cards=2), SEVERAL_CARDS, "with several cards"),
        (replace(POD, is_leaving=True), None, "in termination"),
        (replace(POD, kept_by="key=false"), None, "with key=false"),
        (replace(POD, cards=0), None, "of unknown card"),
        (replace(POD, is_charged=False), None, "of unknown card"),
        (replace(POD, has_resource_claims=True), None, "with ResourceClaims"),
        (replace(POD, budgets=2), None, "under several PodDisruptionBudgets"),
    ],
)
def test_a_pod_stays_by_its_kind(
    pod: MoveCandidate, allowed_by: str | None, reason: str
) -> None:
    """Three kinds move if an operator allows it, each by a word of its own."""
    others = [word for word in ALLOWABLE if word != allowed_by]
    assert why_pod_stays(pod, others) == reason
    assert why_pod_stays(pod, ALLOWABLE) == ("" if allowed_by else reason)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (ref("equal", priority=5), ""),
        (ref("higher", priority=6), "of higher priority"),
        (ref("new"), "that are not seen on their nodes yet"),
        (ref("kept"), "that a PodDisruptionBudget protects now"),
        (ref("spare"), ""),
        (replace(ref("claim"), is_resource_claim=True), "that are ResourceClaims"),
    ],
    ids=str,
)
def test_a_pod_stays_for_the_sake_of_the_waiting_one(pod: PodRef, reason: str) -> None:
    budgets = (
        Budget(frozenset({ref("kept").uid}), allowed=0),
        Budget(frozenset({ref("spare").uid}), allowed=1),
    )
    facts = EvictionFacts(budgets=budgets, reserved={ref("new").uid})
    others = PrioritiesAndBudgets(ref("waiting", priority=5), facts)
    assert others.why_pod_stays(pod) == reason
