"""Set up what the whole test suite needs, ahead of pytest: ``python -m tests.setup``.

Builds the real Kubernetes binaries into the cache, all that a real cluster is made of,
our own image and Helm, and fetches Prometheus and a browser. Where that cannot be done
it says why and what the cure is, and pytest goes on without: each test that would have
needed it is then skipped with the same words, or fails when REQUIRE_ALL=1.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.testbed.binaries import cache_folder
from tests.testbed.browser import ensure_browser
from tests.testbed.helm import ensure_helm
from tests.testbed.kubeadm.appimage import ensure_app_image
from tests.testbed.kubeadm.programs import ensure_programs
from tests.testbed.kubernetes import ensure_kubernetes
from tests.testbed.prometheus import ensure_monitoring
from tests.testbed.toolchain import BinariesUnavailableError

# The control plane first, because it needs less of the machine than a cluster does.
PARTS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("control plane", ensure_kubernetes),
    ("cluster", ensure_programs),
    ("image of ours", ensure_app_image),
    ("Prometheus", ensure_monitoring),
    ("Helm", ensure_helm),
    ("browser", ensure_browser),
)


def main() -> int:
    """Build, and report."""
    cache = cache_folder(os.environ)
    lacking = [name for name, build in PARTS if not _had(name, build, cache)]
    return 1 if lacking and os.environ.get("REQUIRE_ALL") == "1" else 0


def _had(name: str, build: Callable[[Path], object], cache: Path) -> bool:
    try:
        build(cache)
    except BinariesUnavailableError as error:
        print(f"No real {name}: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
