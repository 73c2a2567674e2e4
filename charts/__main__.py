"""``python -m charts``: write the templates of the Helm chart.

With ``--check`` it only names those that differ from ``manifests/``, and fails.
"""

import sys

from charts.writing import find_outdated, write_templates


def main(words: list[str]) -> int:
    """Print the paths of the files that changed, or that have to."""
    if words == ["--check"]:
        paths = find_outdated()
        for path in paths:
            sys.stdout.write(f"{path}: run python -m charts to write it again\n")
        return 1 if paths else 0
    for path in write_templates():
        sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
