"""What all processes share: the decision, access to Kubernetes, settings, logs."""
