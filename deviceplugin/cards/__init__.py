"""The cards of a node: found, read, joined, judged and advertised."""
