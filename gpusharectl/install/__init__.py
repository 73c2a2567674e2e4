"""Putting this software into a cluster, and taking it out again."""
