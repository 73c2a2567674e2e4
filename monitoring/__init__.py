"""Dashboards and alerts as Python data.

Only for development, like ``bench``: ``python -m monitoring`` writes the generated
files of ``manifests/monitoring`` and ``docs/alerts.md``.
"""
