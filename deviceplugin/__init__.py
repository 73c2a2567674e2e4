"""The device plugin and the exporter, which run on every GPU node."""
