"""Metrics of cards, containers and pods for Prometheus and the BIE agent."""
