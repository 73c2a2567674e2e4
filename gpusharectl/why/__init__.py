"""``gpusharectl why``: why a pod waits, or why it is on its card."""
