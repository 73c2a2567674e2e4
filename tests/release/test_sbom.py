"""Bills of materials name what is in wheels and in an image's layers."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from release.archives import sha256
from release.commit import Commit
from release.sbom import Package, read_image, read_wheels, write_bill

SITE = "opt/gpushare/lib/python3.13/site-packages"
TEXT = "Redistribution and use\n        in source and binary forms"


def metadata(name: str, version: str, *more: str) -> str:
    head = ("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more)
    return "\n".join((*head, "", "Name: not of the head"))


def wheel(folder: Path, name: str, told: str) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("a-1.dist-info/METADATA", told)
    return path


def layer(path: Path, files: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            opened.addfile(member, io.BytesIO(text.encode()))
    return path


def test_wheels_of_one_package_are_one_part_with_their_sums(tmp_path: Path) -> None:
    told = metadata("Some_Package", "1.2", "License-Expression: MIT OR Apache-2.0")
    one = wheel(tmp_path, "some_package-1.2-cp311-x.whl", told)
    other = wheel(tmp_path, "some_package-1.2-cp312-x.whl", told)
    (part,) = read_wheels(tmp_path)
    assert part.purl == "pkg:pypi/some-package@1.2"
    assert part.licence == {"expression": "MIT OR Apache-2.0"}
    assert part.files == {each.name: sha256(each) for each in (one, other)}


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (["License: MIT"], "MIT"),
        ([f"License: {TEXT}", "Classifier: License :: OSI Approved :: X"], "X"),
        (["Classifier: License :: OSI Approved :: BSD License"], "BSD License"),
        ([f"License: {TEXT}"], None),
        (["Classifier: Topic :: License"], None),
    ],
)
def test_an_older_wheels_licence_is_a_name(
    tmp_path: Path, told: list[str], name: str | None
) -> None:
    wheel(tmp_path, "a-1-py3-none-any.whl", metadata("a", "1", *told))
    (part,) = read_wheels(tmp_path)
    assert part.licence == ({"license": {"name": name}} if name else {})


def test_an_images_last_layer_says_what_is_installed(tmp_path: Path) -> None:
    """Of the base: Debian's packages; of ours: Python, and its packages."""
    dpkg = (
        "Package: libc6\nStatus: install ok installed\nVersion: 1:2.36-9+deb12u9\n"
        "Architecture: amd64\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
        "Architecture: amd64\n\n"
        "Package: never\nStatus: purge ok not-installed\nVersion: 1\n"
        "Architecture: amd64\n"
    )
    base = layer(
        tmp_path / "base",
        {"./var/lib/dpkg/status": "Package: old\nVersion: 1\nArchitecture: all\n"},
    )
    ours = layer(
        tmp_path / "ours",
        {
            "var/lib/dpkg/status": dpkg,
            "opt/gpushare/pyvenv.cfg": "home = /usr/local/bin\nversion = 3.13.9\n",
            f"{SITE}/click-8.dist-info/METADATA": metadata("click", "8"),
            f"{SITE}/click/METADATA.txt": metadata("other", "1"),
        },
    )
    assert [part.purl for part in read_image([base, ours])] == [
        "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u9?arch=amd64",
        "pkg:generic/python@3.13.9",
        "pkg:pypi/click@8",
    ]


def test_a_bill_is_of_the_commits_time(tmp_path: Path) -> None:
    """And what it is about is not one of its own parts."""
    about, part = Package("pkg:pypi/a@1", "a", "1"), Package("pkg:pypi/b@2", "b", "2")
    path = tmp_path / "bill"
    write_bill(path, about, [about, part], Commit(tmp_path, "abc", 86400))
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    assert bill["metadata"]["component"]["name"] == "a"
    assert [one["name"] for one in bill["components"]] == ["b"]
