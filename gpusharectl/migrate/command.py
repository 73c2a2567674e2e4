"""``gpusharectl migrate``: manifests for another system, rewritten file by file."""

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from gpushare.files import replace_file
from gpushare.kube.words import counted
from gpushare.yaml_edit import NotEditable
from gpushare.yaml_file import YamlError, read_bytes
from gpusharectl.migrate.rewrite import Rewritten, rewrite
from gpusharectl.migrate.systems import Options, System
from gpusharectl.output import fit_to_show

_STDIN = Path("-")
_MOST_FILE_MIB = 64
_MOST_CARD_MIB = 16_777_216
_TO_DO = 3
_CODES = (
    "Exit codes: 0 everything was carried over, or there was nothing to do; 1 a file "
    "could not be read, and none was changed, or one could not be written; 2 the "
    "command line is wrong; 3 something is left to do by hand, as reported."
)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    before: str
    after: Rewritten


@click.command(epilog=_CODES)
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--write", is_flag=True, help="Change the files; default: print the result."
)
@click.option(
    "--from",
    "system",
    type=click.Choice([system.value for system in System]),
    help="Rewrite only the resources of this system; default: of all four.",
)
@click.option(
    "--card-mib",
    type=click.IntRange(256, _MOST_CARD_MIB),
    metavar="MIB",
    help="The memory of the cards, as nvidia-smi shows it, for percentages and shares.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="nvidia.com/gpu counts shares of a card, N each, by time-slicing; 1: whole "
    "cards.",
)
@click.option(
    "--unit-mib",
    type=click.IntRange(1, 1024 * 1024),
    metavar="MIB",
    help="What 1 of aliyun.com/gpu-mem (default: 1024) or nvidia.com/gpumem (default: "
    "1) is.",
)
def migrate(
    *,
    files: tuple[Path, ...],
    write: bool,
    system: str | None,
    card_mib: int | None,
    replicas: int | None,
    unit_mib: int | None,
) -> None:
    """Rewrite manifests that were made for another way of sharing cards.

    FILE is YAML or JSON, or - for standard input. Resources of HAMi, of
    gpushare-scheduler-extender (aliyun.com), of gpu-manager (tencent.com) and of
    NVIDIA's time-slicing become baidu.com/vcuda-memory and baidu.com/vcuda-core. The
    rest of a file stays as it is, with its comments. The report says what could not be
    carried over. No cluster is read or changed. docs/migrate.md compares the systems.
    """
    if write and _STDIN in files:
        raise click.UsageError("--write changes files; standard input is none")
    source = System(system) if system else None
    options = Options(source, card_mib, replicas, unit_mib)
    migrated = [_migrate_file(path, options) for path in dict.fromkeys(files)]
    if write:
        _write_all(migrated)
    else:
        texts = [file.after.text for file in migrated]
        click.echo(_joined(texts).encode(), nl=False)
    sys.exit(_report(migrated, write=write))


def _migrate_file(path: Path, options: Options) -> _File:
    before = _read(path)
    try:
        return _File(path, before, rewrite(before, options))
    except NotEditable as error:
        problem = fit_to_show(f"{_name(path)}: {error}")
        hint = "; render a chart first: helm template … | gpusharectl migrate -"
        raise click.ClickException(
            problem + (hint if "{{" in before else "")
        ) from error


def _read(path: Path) -> str:
    try:
        if path == _STDIN:
            return sys.stdin.buffer.read().decode()
        return read_bytes(path, _MOST_FILE_MIB).decode()
    except YamlError as error:
        raise click.ClickException(fit_to_show(str(error))) from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{_name(path)}: is not a text in UTF-8") from error


def _name(path: Path) -> str:
    return "standard input" if path == _STDIN else str(path)


def _joined(texts: Sequence[str]) -> str:
    """Return several files as one YAML stream; a single one as it is."""
    parts: list[str] = []
    for text in texts:
        if parts and text.strip():
            if not parts[-1].endswith("\n"):
                parts.append("\n")
            if not text.startswith("---"):
                parts.append("---\n")
        parts.append(text)
    return "".join(parts)


def _write_all(files: Sequence[_File]) -> None:
    for file in files:
        if file.after.text == file.before:
            continue
        try:
            _write(file.path.resolve(), file.after.text.encode())
        except OSError as error:
            raise click.ClickException(
                f"{file.path}: cannot be written ({error.strerror})"
            ) from error


def _write(path: Path, content: bytes) -> None:
    """Replace a file atomically; it keeps its mode and, if possible, its owner."""
    there = path.stat()
    replace = partial(
        replace_file,
        path,
        content,
        mode=stat.S_IMODE(there.st_mode),
        synced=True,
        part=f".migrate-{os.getpid()}",
    )
    try:
        replace(owner=(there.st_uid, there.st_gid))
    except PermissionError:
        # Only root may give a file to another user.
        replace()


def _report(files: Sequence[_File], *, write: bool) -> int:
    count = 0
    for file in files:
        for finding in file.after.findings:
            count += finding.by_hand
            sign = "" if finding.by_hand else "note: "
            place = f"{_name(file.path)}:{finding.line}"
            words = f"{place}: {sign}{finding.where}: {finding.text}"
            click.echo(fit_to_show(words), err=True)
    objects = sum(file.after.objects for file in files)
    done = counted(objects, "object") + (" changed" if write else " rewritten")
    rest = (
        f"{counted(count, 'field')} left to you, see above" if count else "nothing left"
    )
    nothing = "Nothing of the other systems was found."
    click.echo(f"{done}; {rest}." if objects or count else nothing, err=True)
    return _TO_DO if count else 0
