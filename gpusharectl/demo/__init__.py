"""The demo: a cluster of the real extender and device plugin, and stand-ins."""
