"""The device plugin's own metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 5.0)


class PluginMetrics:
    """Counters and gauges of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Histogram(
            "vcuda_plugin_call_seconds",
            "Duration of kubelet's calls.",
            ["call", "resource"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.refused = Counter(
            "vcuda_plugin_refused",
            "Calls of kubelet that were answered with an error.",
            ["call", "resource"],
            registry=registry,
        )
        self.registrations = Counter(
            "vcuda_plugin_registrations",
            "Registrations of a resource with kubelet.",
            ["resource"],
            registry=registry,
        )
        self.registered = Gauge(
            "vcuda_plugin_registered",
            "1 while the resource is registered with kubelet.",
            ["resource"],
            registry=registry,
        )
        self.sick = Gauge(
            "vcuda_plugin_card_sick",
            "1 if the card is sick, so that it gets no new pods.",
            ["UUID"],
            registry=registry,
        )
