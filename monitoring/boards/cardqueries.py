"""Queries about the card that is selected at the top of its dashboard."""

from monitoring.panels import Query

_CARD = 'NodeName=~"$node", UUID=~"$card"'
WHO = "{{NamespaceName}}/{{PodName}} {{ContainerName}}"


def of(metric: str) -> str:
    """Select the card that is selected at the top."""
    return f"{metric}{{{_CARD}}}"


def most(metric: str) -> str:
    """Return the metric once, whichever exporter reports it."""
    return f"max({of(metric)})"


def plain(*metrics: tuple[str, str]) -> tuple[Query, ...]:
    """Return a line for each gauge, with its legend."""
    return tuple(Query(most(metric), legend) for metric, legend in metrics)


def rates(*metrics: tuple[str, str], scale: str = "") -> tuple[Query, ...]:
    """Return a line for each counter: its increase per second."""
    return tuple(
        Query(f"max(rate({of(metric)}[$__rate_interval])){scale}", legend)
        for metric, legend in metrics
    )
