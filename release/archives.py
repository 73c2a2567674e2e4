"""Write archives whose bytes depend only on what is in them."""

import gzip
import hashlib
import tarfile
from collections.abc import Mapping
from pathlib import Path


def files_in(folder: Path, top: str = "") -> Mapping[str, Path]:
    """Return all files of a folder by their names in an archive, below ``top``."""
    return {
        str(Path(top, path.relative_to(folder))): path
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_tar(path: Path, files: Mapping[str, Path], epoch: int) -> None:
    """Write files as a tar archive; one whose name ends with ``gz`` is compressed.

    They are sorted, belong to root, are from ``epoch``, and have no folders as members.
    A file that its owner may execute is one for all; nobody else may write one.
    """
    with path.open("wb") as raw:
        if not path.suffix.endswith("gz"):
            _fill(raw, files, epoch)
            return
        # Neither its name nor the time, which gzip would write.
        with gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            _fill(packed, files, epoch)


def _fill(out: object, files: Mapping[str, Path], epoch: int) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name in sorted(files):
            source = files[name]
            member = tarfile.TarInfo(name)
            member.size = source.stat().st_size
            member.mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
            member.mtime = epoch
            with source.open("rb") as content:
                archive.addfile(member, content)


def repack(path: Path, epoch: int, work: Path) -> None:
    """Write a tar archive again, as ``write_tar`` does."""
    unpack(path, work)
    write_tar(path, files_in(work), epoch)


def unpack(path: Path, folder: Path) -> None:
    """Unpack a tar archive that this program has made."""
    with tarfile.open(path) as archive:
        # Pythons before 3.11.4 have no filters.
        unfiltered = getattr(tarfile, "fully_trusted_filter", None)
        archive.extraction_filter = getattr(tarfile, "data_filter", unfiltered)
        archive.extractall(folder)  # noqa: S202


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_sums(folder: Path) -> None:
    """Write the sums of all files of a folder, for ``sha256sum --check``."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
