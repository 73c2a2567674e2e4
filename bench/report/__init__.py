"""``python -m bench.report``: draws docs/performance.md from what was measured."""
