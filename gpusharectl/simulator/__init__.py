"""``gpusharectl simulate``: play a scenario with the decisions of the domain."""
