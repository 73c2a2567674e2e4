"""Rules for new pods: what is set, denied and warned of. Pure."""
