"""What has to be seen on a real card: ``python -m tests.gpu.checklist``.

It writes the section "On hardware" of docs/isolation.md: the date, the card, the
driver, and what each step has seen. A step that fails, or whose parts are missing, says
so on the page; the others go on.
The card's settings stay as they are. Torch and CuPy are measured if they can be
imported.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

from deviceplugin.allocation.isolation import limits_text
from exporter.held import ContainerLimit, judge_container
from exporter.owners.procfs import ProcFs
from exporter.owners.regions import counted_in
from exporter.telemetry import fields as f
from exporter.telemetry.nvml import NvmlTelemetry
from exporter.usage import (
    CONTEXT_MIB,
    ContainerUse,
    Usage,
    due_cases,
    follow_cases,
    overuse_text,
)
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import NoCardsYet
from gpushare.domain.model import UNIT_MIB, Amount
from gpushare.kubelet.pods import HardLimit
from tests.gpu.cuda import command, running
from tests.gpu.test_readings import LOAD_MIB, SAME, everything, first, load, smi
from tests.isolation.build import LIBRARY, build_library, places_in

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "isolation.md"
COMMAND = "python -m tests.gpu.checklist"
_HEAD = f"""\
## On hardware
What was seen on a real card. `{COMMAND}` writes this section. Run it from this
project's folder, after `make .venv/.installed`, on a machine with a card of NVIDIA's
and its driver, while nothing else uses the card. It changes no setting of the card.
"""
NOTHING = f"""{_HEAD}
**Nothing of this version was seen on a real card.** All tests of cards run over a stub
of NVIDIA's driver (`tests/nvml`).
"""
_FRAMEWORKS = {
    "torch": "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()",
    "cupy": "import cupy; cupy.zeros(1); cupy.cuda.Device().synchronize()",
}
_FILLS = {
    "torch": """
import torch
held = []
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device='cuda'))
except torch.cuda.OutOfMemoryError as error:
    free, total = (n >> 20 for n in torch.cuda.mem_get_info())
    print(f'free {free} MiB of {total} MiB; got {64 * len(held)} MiB', type(error))
""",
    "cupy": """
import cupy
held = []
try:
    while True:
        held.append(cupy.empty(64 << 20, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError as error:
    free, total = (n >> 20 for n in cupy.cuda.runtime.memGetInfo())
    print(f'free {free} MiB of {total} MiB; got {64 * len(held)} MiB', type(error))
""",
}
"""Frameworks that take memory until they are refused."""
_HOLDS = "; print('ready', flush=True); import sys; sys.stdin.read()"
SHARE_MIB = 1024
_SETTLES_S = 1.0
_LIMIT_S = 600
_FAULT_WITHIN_S = 10.0


class Missing(Exception):
    """What a step needs and this machine has not."""


@dataclass(frozen=True, slots=True)
class Card:
    """The first card, which the steps use."""

    telemetry: NvmlTelemetry

    def used_mib(self) -> float:
        """Its memory in use, once what has ended has let go of it."""
        time.sleep(_SETTLES_S)
        return first(self.telemetry, f.MEMORY).values[f.FB_USED]


class Step(NamedTuple):
    """One heading of the page, and what finds its lines."""

    title: str
    look: Callable[[Card], Iterator[str]]


def marked_tests(_card: Card) -> Iterator[str]:
    """The tests that want a card, and the contract suite on it."""
    folders = ["tests/gpu", "tests/contract", "tests/isolation"]
    there = [folder for folder in folders if (ROOT / folder).is_dir()]
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rfs", *there]
    told = output(words).splitlines()
    yield from (f"- {line}" for line in told if line.startswith(("FAILED", "SKIPPED")))
    yield f"- `pytest -m gpu`: {told[-1] if told else 'said nothing'}"


def beside_nvidia_smi(card: Card) -> Iterator[str]:
    """Every value that both have, in one unit."""
    wanted, told = smi(*(name for name, _ in SAME.values())), everything(card.telemetry)
    yield "| field | exporter | nvidia-smi | may differ by |"
    yield "|---|---|---|---|"
    for (field, (name, apart)), word in zip(SAME.items(), wanted, strict=True):
        yield f"| `{field}` | {told.get(field, 'absent')} | {name} {word} | {apart} |"
    others = ", ".join(f"`{one}`" for one in sorted(told.keys() - SAME.keys()))
    yield ""
    yield f"Read, and not asked of nvidia-smi: {others}."


def links(_card: Card) -> Iterator[str]:
    """The pair scores as the device plugin publishes them, beside ``topo -m``."""
    source = NvmlCards(with_links=True)
    try:
        found = source.cards().cards
    finally:
        source.close()
    if len(found) < 2:
        raise Missing("a second card")
    for one in found:
        scores = (one.links.get(other.uuid, "unknown") for other in found)
        yield f"- card {one.index}: {', '.join(map(str, scores))}"
    yield "```"
    yield output(["nvidia-smi", "topo", "-m"])
    yield "```"


def contexts(card: Card) -> Iterator[str]:
    """What a program holds before it allocates anything."""
    before = card.used_mib()
    with running(command("hold")):
        yield f"- bare context: {card.used_mib() - before:.0f} MiB"
    for name, code in _FRAMEWORKS.items():
        if importlib.util.find_spec(name) is None:
            yield f"- {name}: not installed here"
            continue
        before = card.used_mib()
        with running([sys.executable, "-c", code + _HOLDS]):
            yield f"- {name}, one number: {card.used_mib() - before:.0f} MiB"


def overuse(card: Card) -> Iterator[str]:
    """A process that holds more than a share of half of it."""
    uuid = card.telemetry.cards().cards[0].uuid
    units = LOAD_MIB // UNIT_MIB // 2
    with load():
        time.sleep(_SETTLES_S)
        answer = card.telemetry.processes()[uuid]
    held = max((one.memory_mib or 0 for one in answer.processes), default=0)
    use = ContainerUse(
        uuid, "default", "app", "1", "main", Amount(units, 1), memory_mib=held
    )
    usage = Usage((use,), at=0)
    seen = follow_cases(follow_cases({}, usage, 0), usage, 10)
    words = [overuse_text(one, f"card {uuid}") for one in due_cases(seen, 5)]
    yield f"- {words[0] if words else f'not over its share with {held:.0f} MiB'}"


def preload(card: Card) -> Iterator[str]:
    """Programs up to out-of-memory, with a share of 1024 MiB by the preload library."""
    if shutil.which("gcc") is None:
        raise Missing("gcc")
    uuid = card.telemetry.cards().cards[0].uuid
    with TemporaryDirectory() as name:
        folder = Path(name)
        build_library(folder / LIBRARY, *places_in(folder))
        share = HardLimit("preload", SHARE_MIB, SHARE_MIB)
        (folder / "limits").write_text(limits_text(uuid, share, 0))
        os.mkfifo(folder / "region")
        own = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
        own["LD_PRELOAD"] = str(folder / LIBRARY)
        yield f"- alone: {output(command('fill'), own)}"
        with running(command("busy", str(SHARE_MIB // 2)), own):
            beside = output(command("fill"), own)
            yield f"- beside one that holds {SHARE_MIB // 2} MiB: {beside}"
        yield f"- after that one has ended: {output(command('fill'), own)}"
        before = card.used_mib()
        with running(command("busy", str(SHARE_MIB)), own):
            more = card.used_mib() - before - SHARE_MIB
            yield f"- the driver's own memory above the share: {more:.0f} MiB"
        half = command("busy", str(SHARE_MIB // 2))
        for what, environment in (("with it", own), ("without it", os.environ)):
            with running(half, environment) as pid:
                yield f"- {what} a process is {_held(card, pid, share, folder)}"
        for framework, code in _FILLS.items():
            there = importlib.util.find_spec(framework) is not None
            told = output([sys.executable, "-c", code], own) if there else ""
            yield f"- {framework}: {told or 'not installed here'}"


def _held(card: Card, pid: int, share: HardLimit, folder: Path) -> str:
    """Judge a process as the exporter does, and say what the judgement is about."""
    time.sleep(_SETTLES_S)
    uuid = card.telemetry.cards().cards[0].uuid
    listed = [
        use for use in card.telemetry.processes()[uuid].processes if use.pid == pid
    ]
    counted = counted_in(folder / "region")
    limit = ContainerLimit(share, counted, counts_contexts=True)
    verdict = judge_container(limit, listed, ProcFs().inside([pid]), CONTEXT_MIB)
    if verdict is None:
        return f"unknown: NVML lists {len(listed)} processes with its pid"
    shown = f"NVML shows {listed[0].memory_mib} MiB"
    return f"held; {shown}" if verdict.is_held else f"not held: {verdict.because}"


def fault(card: Card) -> Iterator[str]:
    """XID 31, and that nothing else changes by it."""
    before = everything(card.telemetry)
    while card.telemetry.wait_for_event(0.1):
        pass
    yield f"- the program is told: {output(command('fault'))}"
    events, deadline = [], time.monotonic() + _FAULT_WITHIN_S
    while time.monotonic() < deadline and not events:
        event = card.telemetry.wait_for_event(1)
        events += [event] if event else []
    heard = ", ".join(f"XID {one.xid} of {one.uuid}" for one in events)
    yield f"- the driver reported: {heard or 'nothing'}"
    after = everything(card.telemetry)
    counts = {*after} & {f.ECC_DBE_VOL_TOTAL, f.ECC_SBE_VOL_TOTAL, f.FB_TOTAL}
    other = [name for name in sorted(counts) if before.get(name) != after[name]]
    yield f"- other values that have changed: {', '.join(other) or 'none'}"


def profiling(card: Card) -> Iterator[str]:
    """Profiling values with all rights, and with no capability."""
    names = [field.name for field in f.FIELDS if field.group == f.PROFILING]
    yield f"- as this user: {_profiled(card, names)}"
    if shutil.which("setpriv") is None:
        raise Missing("setpriv (util-linux)")
    code = "from tests.gpu.checklist import profiled; profiled()"
    words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    yield f"- without capabilities: {output([*words, sys.executable, '-c', code])}"


def profiled() -> None:
    """Print the profiling values of the first card, in a process of its own."""
    with opened() as card:
        names = [field.name for field in f.FIELDS if field.group == f.PROFILING]
        print(_profiled(card, names))


def _profiled(card: Card, names: list[str]) -> str:
    uuid = card.telemetry.cards().cards[0].uuid
    card.telemetry.read(f.PROFILING, names)
    time.sleep(_SETTLES_S)
    told = card.telemetry.read(f.PROFILING, names)[uuid]
    return told.failure or f"{len(told.values)} of {len(names)} values"


def mps(card: Card) -> Iterator[str]:
    """Caps by index and by UUID, and whether one client's fault reaches another."""
    control = "nvidia-cuda-mps-control"
    if shutil.which(control) is None:
        raise Missing(control)
    uuid = card.telemetry.cards().cards[0].uuid
    with TemporaryDirectory() as folder:
        places = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        own = {**os.environ, **dict.fromkeys(places, folder)}
        yield f"- the daemon says: {output([control, '-d'], own)}"
        try:
            for limit in ("0=1G", f"{uuid}=1G"):
                capped = {**own, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}
                yield f"- limit {limit}: {output(command('fill'), capped)}"
            with running(command("busy", str(LOAD_MIB)), own) as other:
                yield f"- one client's fault: {output(command('fault'), own)}"
                time.sleep(_SETTLES_S)
                lives = "goes on" if is_alive(other) else "has ended"
                yield f"- the other client {lives}"
        finally:
            subprocess.run([control], input="quit\n", text=True, env=own, check=False)


def is_alive(pid: int) -> bool:
    """Whether a child of this process has not ended."""
    return (
        "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    )


STEPS = (
    Step("Tests", marked_tests),
    Step("The exporter beside nvidia-smi", beside_nvidia_smi),
    Step("Links between cards", links),
    Step("Contexts", contexts),
    Step("A process over its share", overuse),
    Step("The preload library", preload),
    Step("A fault", fault),
    Step("Profiling", profiling),
    Step("MPS", mps),
)


def page(head: str, steps: tuple[Step, ...], card: Card) -> str:
    """Make the page; a step that fails leaves what it has seen, and why it ended."""
    lines = [_HEAD, head]
    for step in steps:
        print(step.title, file=sys.stderr, flush=True)
        lines += ["", f"### {step.title}", step.look.__doc__ or "", ""]
        try:
            lines += step.look(card)
        except Missing as missing:
            lines.append(f"- not tried: {missing} is missing")
        except (Exception, SystemExit) as error:
            lines.append(f"- **failed**: {type(error).__name__}: {error}")
    return "\n".join(lines) + "\n"


def output(words: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program; its output in one text."""
    # Into a file: a daemon that it starts may keep a pipe open for ever.
    with TemporaryFile("w+") as told:
        done = subprocess.run(
            words,
            env=environment,
            stdout=told,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
        told.seek(0)
        return told.read().strip() or f"code {done.returncode}, and no word"


@contextmanager
def opened() -> Iterator[Card]:
    """The driver, for as long as the steps need it."""
    telemetry = NvmlTelemetry(NvmlCards())
    try:
        if not telemetry.cards().cards:
            raise NoCardsYet("the driver shows no card")
        yield Card(telemetry)
    finally:
        telemetry.close()


def main() -> int:
    """Write the section; without a card say what is missing, and write nothing."""
    # NVML's order, else the first card may be another one there.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.chdir(ROOT)
    try:
        with opened() as card:
            uuid, name, driver = smi("uuid", "name", "driver_version")
            seen = f"{datetime.now(UTC):%Y-%m-%d}: {name} ({uuid}), driver {driver}."
            before = PAGE.read_text().partition(_HEAD.splitlines()[0])[0]
            PAGE.write_text(before + page(seen, STEPS, card))
    except (NoCardsYet, FileNotFoundError) as error:
        print(f"no card to look at: {error}", file=sys.stderr)
        return 1
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
