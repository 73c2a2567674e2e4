"""The extender at work: the last section of the cluster's dashboard."""

from monitoring.panels import HALF, SECONDS, Panel, Query, lines


def extender_panels() -> tuple[Panel, ...]:
    """Give what the extender tells of its own work."""
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
            "kube-scheduler waits for these.",
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
            "conflict: the card was taken since filter; the pod is tried again.",
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
            "Anything but 0 wants a look: gpusharectl inspect -o wide.",
        ),
        lines(
            "Age of the extender's books",
            (
                Query(
                    "max by (instance, kind) (vcuda_extender_ledger_age_seconds)",
                    "{{instance}} {{kind}}",
                ),
            ),
            "Since the API server last said anything of this kind.",
            SECONDS,
        ),
    )
