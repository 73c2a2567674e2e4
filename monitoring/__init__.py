"""Dashboards and alerts as Python data, and what is written of them.

For development alone, like ``bench``: ``python -m monitoring`` writes the files of
``manifests/monitoring`` that say at their head that they are generated.
"""
