"""Print what pex has to know of a Python that it does not run on: ``targets.py 3.12``.

pex names wheels by these tags. A Linux on x86-64 with glibc 2.28 or newer takes them.
"""

import json
import sys

PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)),
    "manylinux2014_x86_64",
)


def target(version: str) -> dict[str, object]:
    """Return the tags and the marker environment of this CPython."""
    minor = int(version.removeprefix("3."))
    interpreters = [
        f"cp3{minor}-cp3{minor}",
        *(f"cp3{older}-abi3" for older in range(minor, 1, -1)),
        "py3-none",
    ]
    tags = [f"{each}-{platform}" for each in interpreters for platform in PLATFORMS]
    return {
        "path": None,
        "compatible_tags": [*tags, "py3-none-any"],
        "marker_environment": {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        },
    }


if __name__ == "__main__":
    print(json.dumps(target(sys.argv[1])))
