"""``python -m monitoring``: write dashboards and alerts."""

import sys

from monitoring.writing import write_files


def main() -> int:
    """Write the files, and print the paths of those that changed."""
    for path in write_files():
        sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
