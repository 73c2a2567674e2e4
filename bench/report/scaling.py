"""Many pods at once, many pods at all."""

from pathlib import Path

from bench.report.page import Found, Section, Table, beside, flat


def burst_section(found: Found, _pictures: Path) -> Section:
    """A burst with the extender, beside the same burst without."""
    words = (
        "A burst of pods on real etcd, kube-apiserver and kube-scheduler, and its "
        "limit: the same burst without an extender, in the same run."
    )
    return Section("A burst of pods", [words, *_tables(found)], found)


def scale_section(found: Found, _pictures: Path) -> Section:
    """A cluster of many nodes and pods."""
    words = "Nodes and pods that are posted to real etcd and kube-apiserver."
    return Section("A large cluster", [words, *_tables(found)], found)


def _tables(found: Found) -> list[Table]:
    """Put what has the same figures twice side by side, and the rest below."""
    groups = {key: each for key, each in found.items() if isinstance(each, dict)}
    shared = set.intersection(*map(set, groups.values())) if len(groups) > 1 else set()
    if not shared:
        return [flat(found)]
    rest = {key: each for key, each in found.items() if key not in groups}
    return [beside(groups), flat(rest)]
