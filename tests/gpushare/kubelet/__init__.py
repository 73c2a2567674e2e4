"""The device plugin, room by room."""
