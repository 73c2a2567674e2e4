"""HTTP servers: bounds on clients, TLS, health, metrics, pages of every process."""
