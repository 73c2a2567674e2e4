"""Pods and nodes of the API server, followed into the ledger."""
