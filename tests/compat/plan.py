"""Which tests are run on every version: what could differ between versions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Area:
    """One row of the page."""

    title: str
    files: tuple[str, ...]
    """Below ``tests``. All tests of each file are run."""


def _on_plane(*names: str) -> tuple[str, ...]:
    return tuple(f"controlplane/test_{name}.py" for name in names)


def _on_cluster(*names: str) -> tuple[str, ...]:
    return tuple(f"cluster/test_{name}.py" for name in names)


AREAS = (
    Area(
        "the seeds' exercises",
        (
            *_on_plane("seed", "rolling_update"),
            *_on_cluster("one_card", "two_cards", "whole_cards"),
        ),
    ),
    Area(
        "filter, bind and refusals",
        _on_plane("bind", "refusals", "policies", "unanswered"),
    ),
    Area("preemption", _on_plane("preemption")),
    Area("kills and restarts", (*_on_plane("faults"), *_on_cluster("restarts"))),
    Area(
        "kubelet: containers, CDI, pod-resources",
        (
            *_on_cluster("containers", "injection", "unscheduled", "refused"),
            *_on_cluster("health", "inventory", "kubelet_defects"),
            *_on_plane("watchdog"),
        ),
    ),
    Area("guard policies", _on_plane("guard", "quotas")),
    Area(
        "webhook",
        (
            *_on_plane("webhook", "webhook_bitfusion", "webhook_down"),
            *_on_plane("webhook_quota", "webhook_reinvocation", "webhook_warnings"),
            *_on_cluster("webhook"),
        ),
    ),
    Area(
        "install and uninstall",
        (
            *_on_plane("install", "manifests", "objects", "second_scheduler", "tls"),
            *_on_cluster("install", "scheduler_config"),
        ),
    ),
    Area(
        "ResourceClaims (DRA)",
        (*_on_plane("dra", "claims", "webhook_dra"), *_on_cluster("dra")),
    ),
)

FILES = tuple(f"tests/{file}" for area in AREAS for file in area.files)


def title_of(file: str) -> str:
    """Give the row in which ``tests/controlplane/test_seed.py`` counts."""
    for area in AREAS:
        if file.removeprefix("tests/") in area.files:
            return area.title
    raise ValueError(f"tests/compat/plan.py has no {file}")
