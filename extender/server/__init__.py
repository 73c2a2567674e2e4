"""HTTP of the extender: kube-scheduler's calls, claims, metrics, the page."""
