"""``gpusharectl migrate``: rewrite manifests that were made for another system.

``systems`` has what each system's resources and annotations mean, ``rewrite`` finds
them in YAML and changes only their bytes, ``command`` reads and writes files.
"""
