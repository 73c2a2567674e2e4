"""Figures of the layout: ``python -m tests.layout``, of another checkout with its path.

A module is a product file that somebody wrote, ``__init__.py`` with a docstring alone
and generated stubs left out. ``--names`` lists what some figures count.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

IN_CLUSTER = ("extender", "webhook", "deviceplugin", "gpushare")
PACKAGES = (*IN_CLUSTER, "exporter", "gpusharectl")
TOOLS = ("installer", "simulator", "demo")
"""The large tools of gpusharectl; what is left are its commands."""
BEFORE = {
    "gpusharectl.install": "gpusharectl.installer",
    "gpusharectl.kube_scheduler": "gpusharectl.installer",
    "gpusharectl.pki": "gpusharectl.installer",
    "gpusharectl.simulate": "gpusharectl.simulator",
    "gpushare.fakeapi": "gpusharectl.demo",
    "deviceplugin.exporter": "exporter",
    "deviceplugin.telemetry": "exporter",
    "extender.webhook": "webhook",
    "extender.bitfusion": "webhook",
    "extender.pool": "webhook",
    "extender.webhook_conf": "webhook",
    "extender.server.webhook_app": "webhook",
}
"""What an older checkout has elsewhere."""
SMALL = 100
VAGUE = ("found", "one")
GENERATED = "_pb2"


def modules(root: Path) -> dict[str, Path]:
    """Every product module by its dotted name."""
    known = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.stem.endswith(GENERATED):
                continue
            if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) < 2:
                continue
            parts = path.relative_to(root).with_suffix("").parts
            known[".".join(parts).removesuffix(".__init__")] = path
    return known


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that one imports."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                imported.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
    return {other for other in imported if other in known and other != name}


def single_importers(known: dict[str, Path]) -> dict[str, str]:
    """Small modules that only one other imports, each with that one."""
    importers = defaultdict(set)
    for name, path in known.items():
        for other in imports(name, path, known):
            importers[other].add(name)
    return {
        name: next(iter(importers[name]))
        for name, path in known.items()
        if len(importers[name]) == 1 and lines([path]) < SMALL
    }


def lines(paths: Iterable[Path]) -> int:
    """Lines of files, blank ones and comments with them."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def words(paths: Iterable[Path]) -> int:
    """Words of files."""
    return sum(len(path.read_text().split()) for path in paths)


def part_of(name: str) -> str:
    """The process or tool that a module belongs to."""
    for before, now in BEFORE.items():
        if name == before or name.startswith(f"{before}."):
            name = now
    top, _, rest = name.partition(".")
    if top != "gpusharectl":
        return top
    tool = rest.split(".")[0]
    return f"{top} {tool if tool in TOOLS else 'commands'}"


class Names:
    """What classes, functions and values are called, counted over all modules."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.classes: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.values: Counter[str] = Counter()
        for path in paths:
            tree = ast.parse(path.read_text())
            self.functions.update(
                node.name
                for node in tree.body
                if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
            )
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] += 1
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.values[node.id] += 1
                elif isinstance(node, ast.arg):
                    self.values[node.arg] += 1

    @property
    def repeated_classes(self) -> dict[str, int]:
        """Names of more than one class."""
        return {name: n for name, n in self.classes.items() if n > 1}

    @property
    def repeated_functions(self) -> dict[str, int]:
        """Names of more than two public functions of modules."""
        return {name: n for name, n in self.functions.items() if n > 2}


def figures(root: Path) -> Iterator[tuple[str, object]]:
    """What the layout is judged by."""
    known = modules(root)
    names = Names(known.values())
    folders = Counter(path.parent.relative_to(root) for path in known.values())
    stems = Counter(
        path.stem for path in known.values() if not path.stem.startswith("__")
    )
    largest = max(known.values(), key=lambda path: lines([path]))
    folder, most = folders.most_common(1)[0]
    parts: Counter[str] = Counter()
    for name, path in known.items():
        parts[part_of(name)] += lines([path])
    yield "modules", len(known)
    yield f"single importers under {SMALL} lines", len(single_importers(known))
    yield "largest folder", f"{most} ({folder})"
    yield "repeated basenames", sum(times > 1 for times in stems.values())
    yield "longest module", f"{lines([largest])} ({largest.relative_to(root)})"
    yield "product lines", sum(parts.values())
    yield "  what runs in a cluster", sum(parts[part] for part in IN_CLUSTER)
    for part in (*IN_CLUSTER, "exporter", "gpusharectl commands"):
        yield f"    {part}" if part in IN_CLUSTER else f"  {part}", parts[part]
    for tool in TOOLS:
        yield f"  gpusharectl {tool}", parts[f"gpusharectl {tool}"]
    yield "test lines", lines((root / "tests").rglob("*.py"))
    yield "class names with several meanings", len(names.repeated_classes)
    yield (
        f"values called {' or '.join(VAGUE)}",
        sum(names.values[name] for name in VAGUE),
    )
    yield "public functions named alike in 3 modules", len(names.repeated_functions)
    pages = list((root / "docs").glob("*.md"))
    yield "words in docs/", words(pages)
    yield "pages in docs/", len(pages)
    yield "decision records", len(list((root / "docs/decisions").glob("0*.md")))


def main() -> None:
    """Print the figures, and with ``--names`` what is counted in them."""
    roots = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    root = roots[0] if roots else Path(__file__).parents[1]
    for title, figure in figures(root):
        print(f"{title:42} {figure}")
    if "--names" in sys.argv:
        known = modules(root)
        names = Names(known.values())
        for name, importer in single_importers(known).items():
            print(f"single importer: {name} of {importer}")
        for name, path in known.items():
            if lines([path]) > 600:
                print(f"long: {name} ({lines([path])})")
        for title, repeated in (
            ("class", names.repeated_classes),
            ("function", names.repeated_functions),
        ):
            for name, times in sorted(repeated.items()):
                print(f"{title} in {times} modules: {name}")


if __name__ == "__main__":
    main()
