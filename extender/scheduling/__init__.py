"""What kube-scheduler asks: filter, prioritize, preempt and bind."""
