"""Figures of the layout: ``python -m tests.layout``, of another checkout with its path.

A module is a product file that somebody wrote, ``__init__.py`` with a docstring alone
and generated stubs left out. The files of a flow are what an entry point imports of
ours, directly or not; those of all flows (names, model, errors) are counted as well.
"""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

PACKAGES = (
    *("extender", "webhook", "deviceplugin", "exporter"),
    *("gpushare", "gpusharectl"),
)
SMALL = 100


def modules(root: Path) -> dict[str, Path]:
    """Every product module by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.stem.endswith(("_pb2", "_pb2_grpc")):
                continue
            if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) < 2:
                continue
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that one imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {other for other in found if other in known and other != name}


def lines(paths: list[Path]) -> int:
    """Lines of files, blank ones and comments with them."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def figures(root: Path) -> list[tuple[str, object]]:
    """What the layout is judged by, in the order of the closing table."""
    known = modules(root)
    importers = defaultdict(set)
    for name, path in known.items():
        for other in imports(name, path, known):
            importers[other].add(name)
    single = [
        name
        for name, path in known.items()
        if len(importers[name]) == 1 and lines([path]) < SMALL
    ]
    folders = Counter(path.parent.relative_to(root) for path in known.values())
    stems = Counter(
        path.stem for path in known.values() if not path.stem.startswith("__")
    )
    largest = max(known.values(), key=lambda path: lines([path]))
    folder, most = folders.most_common(1)[0]
    tests = list((root / "tests").rglob("*.py"))
    return [
        ("modules", len(known)),
        (f"single importers under {SMALL} lines", len(single)),
        ("largest folder", f"{most} ({folder})"),
        ("repeated basenames", sum(1 for times in stems.values() if times > 1)),
        ("longest module", f"{lines([largest])} ({largest.relative_to(root)})"),
        ("product lines", lines(list(known.values()))),
        *(
            (
                f"  {package}",
                lines([p for m, p in known.items() if m.split(".")[0] == package]),
            )
            for package in PACKAGES
        ),
        ("test lines", lines(tests)),
    ]


def main() -> None:
    """Print the figures, and with ``--names`` the single importers and long modules."""
    roots = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    root = roots[0] if roots else Path(__file__).parents[1]
    for title, figure in figures(root):
        print(f"{title:36} {figure}")
    if "--names" in sys.argv:
        known = modules(root)
        importers = defaultdict(set)
        for name, path in known.items():
            for other in imports(name, path, known):
                importers[other].add(name)
        for name, path in known.items():
            if len(importers[name]) == 1 and lines([path]) < SMALL:
                print(f"single importer: {name} ({lines([path])}) of {importers[name]}")
            if lines([path]) > 600:
                print(f"long: {name} ({lines([path])})")


if __name__ == "__main__":
    main()
