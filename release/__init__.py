"""The files of a release, built from one commit: ``make release``.

The same commit, tools and base image give the same bytes (decision 0075).
"""
