"""Which pod and container a process and a part of a card belong to."""
