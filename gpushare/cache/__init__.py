"""What the API server says of pods and nodes, followed into the domain's ledger."""
