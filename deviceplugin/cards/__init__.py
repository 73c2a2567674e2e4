"""The cards of a node: sources, health, and what the node offers."""
