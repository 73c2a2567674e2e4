"""A real API server's objects, through the kubernetes client."""
