"""The state of the cluster's cards, read once for every command."""
