"""A cluster on one desk: stand-ins around the real extender, told as a story."""
