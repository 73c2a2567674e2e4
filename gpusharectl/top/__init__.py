"""What pods and cards use, beside what they were allotted: ``gpusharectl top``."""
