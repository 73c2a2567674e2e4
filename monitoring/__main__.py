"""``python -m monitoring``: write dashboards and alerts; print what has changed."""

import sys

from monitoring.writing import write_files

for path in write_files():
    sys.stdout.write(f"wrote {path}\n")
