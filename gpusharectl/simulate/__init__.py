"""``gpusharectl simulate``: play a scenario with the extender's own decisions."""
