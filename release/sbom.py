"""Bills of materials, as CycloneDX has them, read from what was built.

The schema is https://cyclonedx.org/docs/1.6/json. Only what is in the files is listed,
so no list can differ from them. Which package needs which other is not said.
"""

import email
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from release.archives import sha256
from release.commit import Commit


@dataclass(frozen=True, slots=True)
class Package:
    """A package, whose ``purl`` is as https://github.com/package-url has it.

    ``files`` are the names and SHA-256 of the wheels that have it.
    """

    purl: str
    name: str
    version: str
    licence: Mapping[str, object] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def component(self) -> Mapping[str, object]:
        """Return it as CycloneDX has it."""
        component: dict[str, object] = {"type": "library", "bom-ref": self.purl}
        component |= {"name": self.name, "version": self.version, "purl": self.purl}
        if self.licence:
            component["licenses"] = [self.licence]
        if self.files:
            component["components"] = [
                {
                    "type": "file",
                    "name": name,
                    "hashes": [{"alg": "SHA-256", "content": digest}],
                }
                for name, digest in sorted(self.files.items())
            ]
        return component


_METADATA = re.compile(r"\.dist-info/METADATA$")


def read_wheels(folder: Path) -> Sequence[Package]:
    """Return the packages in the wheels of a folder."""
    parts: dict[str, Package] = {}
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as opened:
            (name,) = filter(_METADATA.search, opened.namelist())
            text = opened.read(name).decode()
        (part,) = _of_metadata(text)
        parts.setdefault(part.purl, part).files[wheel.name] = sha256(wheel)
    return _sorted(parts)


def read_image(layers: Iterable[Path]) -> Sequence[Package]:
    """Return the packages of Python and of Debian in the layers of an image.

    The layers are in the image's order: a file of a later one replaces the former.
    """
    packages_by_file: dict[str, Sequence[Package]] = {}
    for layer in layers:
        with tarfile.open(layer) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                reads = [read for pattern, read in _READS if pattern.fullmatch(name)]
                content = archive.extractfile(member) if reads else None
                if content is not None:
                    packages_by_file[name] = list(reads[0](content.read().decode()))
    # Names and versions that are in two files are one package.
    packages = chain.from_iterable(packages_by_file.values())
    return _sorted({package.purl: package for package in packages})


def _sorted(parts: Mapping[str, Package]) -> Sequence[Package]:
    return [part for _, part in sorted(parts.items())]


def _of_metadata(text: str) -> Iterator[Package]:
    """Yield the package of a wheel's METADATA."""
    head = email.message_from_string(text)
    name = re.sub(r"[-_.]+", "-", head["Name"]).lower()
    purl = f"pkg:pypi/{name}@{head['Version']}"
    yield Package(purl, head["Name"], head["Version"], _licence(head))


def _licence(head: Message) -> Mapping[str, object]:
    """Return a licence as CycloneDX has it; empty if the wheel names none."""
    if expression := head["License-Expression"]:
        return {"expression": expression}
    licence = head["License"] or ""
    classifiers = head.get_all("Classifier", [])
    kinds = [text for text in classifiers if text.startswith("License")]
    # Some have its whole text there.
    if (not licence or "\n" in licence) and kinds:
        licence = kinds[0].rpartition(":: ")[2]
    return {"license": {"name": licence}} if licence and "\n" not in licence else {}


_THERE = " installed"


def _of_dpkg(text: str) -> Iterator[Package]:
    """Yield the packages that dpkg has installed."""
    for paragraph in text.split("\n\n"):
        head = email.message_from_string(paragraph.lstrip())
        # A base without dpkg has no states.
        if not head["Package"] or not head.get("Status", _THERE).endswith(_THERE):
            continue
        name, version = head["Package"], head["Version"]
        escaped = quote(version, safe=".~-")
        purl = f"pkg:deb/debian/{name}@{escaped}?arch={head['Architecture']}"
        yield Package(purl, name, version)


def _of_venv(text: str) -> Iterator[Package]:
    """Yield the Python of a virtual environment."""
    for version in re.findall(r"^version = (\S+)$", text, re.MULTILINE):
        yield Package(f"pkg:generic/python@{version}", "python", version)


_READS: Sequence[tuple[re.Pattern[str], Callable[[str], Iterator[Package]]]] = (
    (re.compile(r"opt/gpushare/lib/[^/]+/site-packages/[^/]+/METADATA"), _of_metadata),
    (re.compile(r"var/lib/dpkg/status(\.d/[^/]+)?"), _of_dpkg),
    (re.compile(r"opt/gpushare/pyvenv\.cfg"), _of_venv),
)
"""The files in an image that name packages, and what reads them."""


def write_bill(
    path: Path, about: Package, parts: Iterable[Package], commit: Commit
) -> None:
    """Write the bill of what ``about`` is: these parts, at the time of the commit."""
    made = datetime.fromtimestamp(commit.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole = {**about.component(), "type": "application"}
    whole["properties"] = [{"name": "gpushare:commit", "value": commit.name}]
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": made, "component": whole},
        "components": [p.component() for p in parts if p.purl != about.purl],
    }
    path.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
