"""Which card a container gets, and how it gets it."""
