"""What Prometheus learns of the plugin itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 5.0)


class PluginMetrics:
    """Counters and gauges, made over one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Histogram(
            "vcuda_plugin_call_seconds",
            "How long kubelet's calls took.",
            ["call", "resource"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.refused = Counter(
            "vcuda_plugin_refused",
            "Calls of kubelet that were answered with an error, by call.",
            ["call", "resource"],
            registry=registry,
        )
        self.registrations = Counter(
            "vcuda_plugin_registrations",
            "How often a resource was registered with kubelet.",
            ["resource"],
            registry=registry,
        )
        self.registered = Gauge(
            "vcuda_plugin_registered",
            "1 while kubelet listens to the resource's devices.",
            ["resource"],
            registry=registry,
        )
        self.sick = Gauge(
            "vcuda_plugin_card_sick",
            "1 for a card that is not offered because it is sick.",
            ["UUID"],
            registry=registry,
        )
