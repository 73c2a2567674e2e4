"""Set up what the whole test suite needs, ahead of pytest: ``python -m tests.setup``.

Builds the real Kubernetes binaries into the cache. Where that cannot be done it says
why and what the cure is, and pytest goes on without: each test that would have needed
them is then skipped with the same words, or fails when REQUIRE_ALL=1.
"""

import os
import sys

from tests.testbed.binaries import cache_folder, ensure_binaries
from tests.testbed.toolchain import BinariesUnavailableError


def main() -> int:
    """Build, and report."""
    try:
        ensure_binaries(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        print(f"No real control plane: {error}", file=sys.stderr)
        return 1 if os.environ.get("REQUIRE_ALL") == "1" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
