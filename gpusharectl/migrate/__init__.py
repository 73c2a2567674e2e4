"""What was made for another system, in units and cores.

``gpusharectl migrate`` rewrites manifests: ``systems`` has what each system's resources
and annotations mean, ``rewrite`` finds them in YAML and changes only their bytes,
``command`` reads and writes files. ``quota`` is ``gpusharectl migrate-quota``.
"""
