"""HTTP of the extender and the webhook: routes, TLS, metrics, the page."""
