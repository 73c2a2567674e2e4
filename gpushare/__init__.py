"""What every process of the house shares: the domain, and the way to Kubernetes."""
