"""Names, Kubernetes JSON and access to the API server; used by every process."""
