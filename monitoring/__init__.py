"""Dashboards and alerts as Python data.

Only for development, like ``bench``: ``python -m monitoring`` writes the generated
files of ``manifests/monitoring`` and ``docs/alerts.md``, which are committed: operators
apply plain files, and a developer changes one line of Python instead of JSON.
"""
