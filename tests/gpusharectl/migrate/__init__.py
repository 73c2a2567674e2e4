"""``gpusharectl migrate``: what it rewrites, what it reports, and what it leaves."""
