"""Placing pods on cards, as pure functions over frozen values.

No clock, no environment, no network, no log: what a function here needs, it is given;
what it decides, it returns. Because of this ``why`` and ``simulate`` can ask the very
functions that decide in production. The glossary is in ``docs/architecture.md``.
"""
