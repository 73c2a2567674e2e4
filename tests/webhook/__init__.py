"""The extender, room by room, over an embedded cluster."""
