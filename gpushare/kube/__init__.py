"""The first floor: names on the wire, Kubernetes JSON, and the API server."""
