"""The operator's hands: commands that look at and work on a cluster."""
