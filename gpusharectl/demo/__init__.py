"""A cluster on one desk: stand-ins around the real extender and device plugin."""
