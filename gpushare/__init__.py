"""The code that all processes share: the domain, and the access to Kubernetes."""
