"""What all processes share: the decision, access to Kubernetes, settings, logs."""

__version__ = "0.1.0"
