"""The client of the API server: the only place where anything is sent to it."""
