"""The Helm chart, whose templates ``python -m charts`` makes of ``manifests/``."""
