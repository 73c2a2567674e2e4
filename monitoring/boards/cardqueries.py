"""Queries about the one card that is chosen at the top of its dashboard."""

from monitoring.panels import Query

_CARD = 'NodeName=~"$node", UUID=~"$card"'
WHO = "{{NamespaceName}}/{{PodName}} {{ContainerName}}"


def of(metric: str) -> str:
    """Choose the card that is chosen at the top."""
    return f"{metric}{{{_CARD}}}"


def most(metric: str) -> str:
    """Take it once, whichever exporter tells of it."""
    return f"max({of(metric)})"


def plain(*metrics: tuple[str, str]) -> tuple[Query, ...]:
    """Give a line for each gauge, with its legend."""
    return tuple(Query(most(metric), legend) for metric, legend in metrics)


def rates(*metrics: tuple[str, str], scale: str = "") -> tuple[Query, ...]:
    """Give a line for each counter: how fast it rises, a second."""
    return tuple(
        Query(f"max(rate({of(metric)}[$__rate_interval])){scale}", legend)
        for metric, legend in metrics
    )
