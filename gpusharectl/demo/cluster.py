"""Start and stop the demo's cluster: the real extender and device plugins as children.

They talk to the API server in memory over loopback HTTP, the plugins also to kubelet's
sockets. API server, kubelet and scheduler are stand-ins in threads of this process.
"""

import http.client
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Self

import orjson
import yaml

from gpushare.addresses import find_free_address
from gpushare.domain.model import CORES_PER_CARD, Card, CardUUID, units_of
from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpushare.server.page_policy import PAGE, STATE
from gpushare.settings import PREFIX, Address
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.kubelet import StandInKubelet
from gpusharectl.demo.scheduler import StandInScheduler

logger = logging.getLogger(__name__)

_STOP_WITHIN_S = 10.0
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
# The parent may have ended before prctl took hold: then no signal comes any more.
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Replaces itself with the program, after asking the kernel to end that with its
parent. A ``preexec_fn`` would not do: it may hang in a process with threads.
"""


class CannotStartError(RuntimeError):
    """A part did not start, or ended by itself; the message has its last log lines."""


class Child:
    """One of gpushare's programs, run by the same Python and with a log of its own.

    On Linux it ends with the thread that makes it, however that ends.
    """

    def __init__(
        self, name: str, module: Sequence[str], settings: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        # The user's own settings are for a real extender.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
        environment |= {PREFIX + name: value for name, value in settings.items()}
        command = [sys.executable, "-m", *module]
        if sys.platform == "linux":
            parent = str(os.getpid())
            command = [sys.executable, "-IS", "-c", _DIE_WITH_PARENT, parent, *command]
        with log.open("wb") as words:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the parent, which ends its children when it needs them
                # no more.
                start_new_session=True,
            )

    def runs(self) -> bool:
        """Tell whether it is still running."""
        return self._process.poll() is None

    def failure(self, what: str) -> CannotStartError:
        """Return the error for what happened, with the last log lines."""
        words = self._log.read_text(errors="replace").strip()
        return CannotStartError(f"the {self.name} {what}:\n{words}")

    def tell_to_end(self) -> None:
        """Ask it to end, and do not wait: several can end at the same time."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it and wait until it has ended."""
        self.tell_to_end()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def fetch_from(address: Address, path: str) -> bytes | None:
    """Return a page; None if there is no answer, or not a good one."""
    link = http.client.HTTPConnection(address.host, address.port, timeout=1)
    with closing(link), suppress(OSError, http.client.HTTPException):
        link.request("GET", path)
        answer = link.getresponse()
        return answer.read() if answer.status == http.client.OK else None
    return None


_EXTENDER = "extender.main:build()"
_START_WITHIN_S = 60.0
_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to create: its cards by UUID, in order, with their memory in MiB."""

    name: str
    model: str
    memory_mib: dict[str, int]

    def cards(self) -> tuple[Card, ...]:
        """Return the cards as the device plugin will offer them."""
        return tuple(
            Card(CardUUID(uuid), index, units_of(mib), model=self.model)
            for index, (uuid, mib) in enumerate(self.memory_mib.items())
        )

    def simulated(self) -> str:
        """Write the file of simulated cards for the device plugin."""
        listed = [
            {"uuid": uuid, "memory_mib": mib, "model": self.model}
            for uuid, mib in self.memory_mib.items()
        ]
        return yaml.safe_dump({"cards": listed}, sort_keys=False)


class DemoCluster:
    """The running cluster; ``folder`` gets the kubeconfig, the logs and the sockets."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Embedded()
        self.kubelet = StandInKubelet(self.cluster, folder)
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder
        self._stop = Event()
        self._threads: dict[str, Thread] = {}
        self._errors: dict[str, Exception] = {}
        """What ended a thread before its time."""
        self._extender: Child | None = None
        self._verbs = find_free_address()
        pages = {path: f"http://{self._verbs}{path}" for path in (PAGE, STATE)}
        self._server = ApiServerOnLoopback(self.cluster, names.DEMO_BUILD, pages)
        self._public = find_free_address()
        self._plugins: dict[str, Child] = {}
        self._leaving: list[Child] = []

    @property
    def page(self) -> str:
        """The URL of the extender's page, for a browser on this machine."""
        return f"http://{self._verbs}{PAGE}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything, the scheduler first, so that it asks nobody in vain."""
        self._stop.set()
        self._join("scheduler")
        children = [*self._children(), *self._leaving]
        for child in children:
            child.tell_to_end()
        for child in children:
            child.end()
        # Kubelet waits for a plugin's answer without limit, so the plugins end first.
        self._join("kubelet")
        self.kubelet.close()
        self._server.stop()

    def join(self, *nodes: NodeSpec) -> None:
        """Add nodes with their device plugins; wait until pods can be placed there.

        All children start at the same time, the extender included.
        """
        for node in nodes:
            self.kubelet.join(node.name)
            self._plugins[node.name] = self._plugin(node)
        self._await_extender()
        for node in nodes:
            plugin = self._plugins[node.name]
            self._wait(plugin, partial(self._why_not_ready, node))

    def leave(self, name: str) -> None:
        """Remove a node; its device plugin ends in its own time."""
        plugin = self._plugins.pop(name)
        plugin.tell_to_end()
        self._leaving.append(plugin)
        self.kubelet.leave(name)

    def check_children(self, what: str = "ended") -> None:
        """Raise ``CannotStartError`` if a part has ended: of a child its last lines."""
        for name, error in self._errors.items():
            raise CannotStartError(f"the demo's {name} ended: {error!r}") from error
        for child in self._children():
            if not child.runs():
                raise child.failure(what)

    def _children(self) -> list[Child]:
        extender = [self._extender] if self._extender else []
        return [*extender, *self._plugins.values()]

    def _start(self) -> None:
        self._server.start()
        self._server.kubeconfig(self.kubeconfig)
        settings = {
            **self._common(),
            "LISTEN": str(self._verbs),
            "PUBLIC_LISTEN": str(self._public),
            "UI": "on",
        }
        module = ("gunicorn", "--config", "python:extender.gunicorn_conf", _EXTENDER)
        log = self._folder / "extender.log"
        self._extender = Child("extender", module, settings, log)
        self._thread("kubelet", self.kubelet.run)

    def _await_extender(self) -> None:
        """Start the scheduler as soon as the extender answers."""
        if self._extender and "scheduler" not in self._threads:
            public = self._public
            self._wait(
                self._extender,
                lambda: "" if fetch_from(public, "/readyz") else "it is not ready",
            )
            scheduler = StandInScheduler(self.cluster, self._verbs)
            self._thread("scheduler", scheduler.run)

    def _plugin(self, node: NodeSpec) -> Child:
        folder = self.kubelet.folder_of(node.name)
        cards = folder / "cards.yaml"
        cards.write_text(node.simulated())
        settings = {
            **self._common(),
            "NODE_NAME": node.name,
            "KUBELET_DIR": str(folder),
            "STATE_DIR": str(folder / "vcuda"),
            "SIMULATED_CARDS": str(cards),
            "INJECT": "env",
            "LISTEN": str(find_free_address()),
        }
        name, log = f"device plugin of {node.name}", folder / "deviceplugin.log"
        return Child(name, ("deviceplugin", "serve"), settings, log)

    def _common(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.kubeconfig), "LOG_FORMAT": "text"}

    def _why_not_ready(self, spec: NodeSpec) -> str:
        """Return what kubelet or the extender does not know yet of a node's cards."""
        node = self.cluster.get(Kind.NODES, "", spec.name)
        wanted = {card.uuid: card.units for card in spec.cards()}
        cores = CORES_PER_CARD * len(wanted)
        offered = {names.MEMORY: str(sum(wanted.values())), names.CORE: str(cores)}
        allocatable = node["status"]["allocatable"]
        if not offered.items() <= allocatable.items():
            return f"kubelet offers {allocatable}"
        pages = orjson.loads(fetch_from(self._verbs, "/snapshot") or b"{}")
        known = {
            card["uuid"]: card["units"]
            for page in pages.get("nodes", ())
            if page["name"] == spec.name
            for card in page["cards"]
        }
        return "" if known == wanted else f"the extender knows its cards as {known}"

    def _wait(self, child: Child, why_not: Callable[[], str]) -> None:
        deadline = time.monotonic() + _START_WITHIN_S
        while because := why_not():
            self.check_children("did not come up")
            if time.monotonic() > deadline:
                raise child.failure(f"did not come up ({because})")
            time.sleep(_EVERY_S)

    def _thread(self, name: str, run: Callable[[Event], None]) -> None:
        def watched() -> None:
            try:
                run(self._stop)
            except Exception as error:
                logger.exception("a part of the demo ended", extra={"part": name})
                self._errors[name] = error

        self._threads[name] = Thread(target=watched, name=name)
        self._threads[name].start()

    def _join(self, name: str) -> None:
        if name in self._threads:
            self._threads[name].join()
