"""The last section of the cluster's dashboard: the extender."""

from monitoring.panels import HALF, SECONDS, Panel, Query, lines


def extender_panels() -> tuple[Panel, ...]:
    """Return the panels about the extender's own work."""
    return (
        lines(
            "The extender's answers, 99th percentile",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, verb)"
                    " (rate(vcuda_extender_request_seconds_bucket"
                    "[$__rate_interval])))",
                    "{{verb}}",
                ),
            ),
            "kube-scheduler waits for these answers.",
            SECONDS,
            span=HALF,
        ),
        lines(
            "Binds",
            (
                Query(
                    "sum by (outcome)"
                    " (increase(vcuda_extender_binds_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            "conflict: the card was taken after filter. The pod is tried again.",
        ),
        lines(
            "Plan and node disagree",
            (
                Query(
                    "max by (NodeName, what) (vcuda_placement_disagreements)",
                    "{{NodeName}} {{what}}",
                ),
                Query(
                    "max(vcuda_extender_pods_without_placement)",
                    "bound without the extender",
                ),
            ),
            "If a value is not 0, run gpusharectl inspect -o wide.",
        ),
        lines(
            "Age of the extender's data",
            (
                Query(
                    "max by (instance, kind) (vcuda_extender_ledger_age_seconds)",
                    "{{instance}} {{kind}}",
                ),
            ),
            "Time since the API server last sent anything of this kind.",
            SECONDS,
        ),
    )
