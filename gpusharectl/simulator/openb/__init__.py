"""The public trace openb, replayed as in its paper."""
