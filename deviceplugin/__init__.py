"""The wing on every GPU node; its rooms come with the device plugin."""
