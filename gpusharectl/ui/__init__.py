"""``gpusharectl ui``: the extender's page, brought to a browser on this machine."""
