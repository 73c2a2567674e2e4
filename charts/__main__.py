"""``python -m charts``: write the templates of the Helm chart."""

import sys

from charts.writing import write


def main() -> int:
    """Write the files, and print the paths of those that changed."""
    for path in write():
        sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
