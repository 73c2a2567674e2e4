"""What the cluster's cards are doing, and why a pod is where it is, or nowhere."""
