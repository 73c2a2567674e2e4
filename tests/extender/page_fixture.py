"""A small cluster to look at, and the real extender's page over it."""

from itertools import count
from threading import Event
from typing import Any, Self

from werkzeug.test import Client

from extender.main import Applications, assemble_extender
from extender.settings import ExtenderSettings
from gpushare.addresses import find_free_address
from gpushare.domain.model import Card
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.server.listener import Listener
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import bound_json, card, node_json, placement, pod_json
from tests.gpushare.server.asgi_client import as_wsgi
from tests.testbed.browser import Browser, Tab
from tests.testbed.waiting import wait_until

RTX, P4, A10 = "NVIDIA GeForce RTX 3090", "Tesla P4", "NVIDIA A10"
ENTER = ("Enter", 13, "\r")
NODES = "document.getElementById('nodes').innerText"


class Scene:
    """The extender's inner listener, on loopback, while its ``with`` lasts.

    Its API server is the embedded one; everything else is real.
    """

    def __init__(self, **settings: Any) -> None:
        numbers = count()
        # The colours are by UID, so that a picture comes out the same twice.
        self.cluster = Embedded(
            bookmark_every_s=0.05, new_uid=lambda: f"uid-{next(numbers)}"
        )
        self._stop = Event()
        self._settings = ExtenderSettings(ui=True, **settings)
        self._address = find_free_address()
        self._server: Listener | None = None
        self._made: Applications | None = None

    def __enter__(self) -> Self:
        self._made = assemble_extender(self._settings, self.cluster, self._stop)
        self.listen()
        wait_until(lambda: self.get("/readyz") == b"ok\n", "ready extender")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.hang_up()

    @property
    def url(self) -> str:
        return f"http://{self._address}/ui"

    def listen(self) -> None:
        assert self._made
        self._server = Listener({self._address: as_wsgi(self._made.inner)})
        self._server.start()

    def hang_up(self) -> None:
        """Stop listening; the books go on."""
        if self._server:
            self._server.close()
            self._server = None

    def get(self, path: str) -> bytes:
        """Ask it without a socket."""
        assert self._made
        return Client(as_wsgi(self._made.inner)).get(path, base_url=self.url).data

    def json(self, path: str) -> Any:
        assert self._made
        return Client(as_wsgi(self._made.inner)).get(path, base_url=self.url).json

    def node(self, name: str, *cards: Card, **more: Any) -> None:
        self.cluster.create(Kind.NODES, node_json(name, *cards, **more))

    def pod(self, pod: Json, namespace: str = "default") -> None:
        """Add a pod, bind it where it should be, and wait until the books have it."""
        pod["metadata"]["namespace"] = namespace
        node = pod["spec"].pop("nodeName", "")
        notes = pod["metadata"].pop("annotations", {}) if node else {}
        name, drawn_up = pod["metadata"]["name"], pod["metadata"]["uid"]
        uid = self.cluster.create(Kind.PODS, pod)["metadata"]["uid"]
        if node:
            told = {key: text.replace(drawn_up, uid) for key, text in notes.items()}
            self.cluster.bind(PodTarget(namespace, name, uid), node, told)
        wait_until(
            lambda: [one["uid"] for one in self._books("pods" if node else "pending")],
            f"{name} in the books",
            accept=lambda seen: uid in seen,
        )

    def _books(self, where: str) -> list[Json]:
        told = self.json("/snapshot")
        if where == "pending":
            return list(told["pending"])
        return [
            one for node in told["nodes"] for one in node["pods"] + node["unplaced"]
        ]

    def holds(
        self, name: str, node: str, on: str, units: int, cores: int = 1, **more: Any
    ) -> None:
        """Add a pod that holds a share of one card."""
        held = placement(name, on, units, cores, node=node)
        self.pod(bound_json(held), **more)

    def gone(self, name: str, namespace: str = "default") -> None:
        self.cluster.delete(Kind.PODS, namespace, name, grace_period_s=0)

    def shown(self, browser: Browser) -> Tab:
        """Open the page, and wait until it has drawn the books."""
        tab = browser.open(self.url)
        drawn(tab)
        return tab


def drawn(tab: Tab) -> None:
    tab.wait_for("!document.getElementById('shown').hidden", "drawn page")


def furnish(scene: Scene) -> None:
    """Put up four nodes with a bit of everything; the picture in docs is of them."""
    rtx = "GPU-5d3cc7ba-17d9"
    scene.node("gpu-1", card(0, 94, uuid=rtx, model=RTX))
    a, b = "GPU-9f12f917-e458", "GPU-7cf0b881-7598"
    scene.node("gpu-2", card(0, uuid=a, model=P4), card(1, uuid=b, model=P4))
    tens = [f"GPU-a10{i}77c2-3f0{i}" for i in range(4)]
    shut = {2: {"cordoned": True}, 3: {"healthy": False}}
    scene.node(
        "gpu-3",
        *(card(i, 90, uuid=tens[i], model=A10, **shut.get(i, {})) for i in range(4)),
    )
    scene.node("edge-1", card(0, 29, uuid="GPU-ed6e0001-88aa", model=P4))
    for namespace, name, node, uuid, units, cores in (
        ("nlp", "bert-intent-7c9f", "gpu-1", rtx, 50, 30),
        ("search", "reranker-5d8b", "gpu-1", rtx, 40, 20),
        ("default", "canary", "gpu-1", rtx, 1, 1),
        ("edge", "cuda10-2-1", "gpu-2", a, 4, 1),
        ("edge", "cuda10-2-2", "gpu-2", a, 20, 1),
        ("edge", "cuda10-2-3", "gpu-2", b, 20, 1),
        ("research", "train-0", "gpu-3", tens[0], 90, 100),
        ("speech", "asr-0", "gpu-3", tens[1], 24, 10),
        ("speech", "asr-1", "gpu-3", tens[1], 20, 10),
        ("speech", "asr-2", "gpu-3", tens[1], 16, 10),
        ("speech", "asr-3", "gpu-3", tens[1], 12, 10),
        ("speech", "tts-0", "gpu-3", tens[2], 32, 10),
    ):
        scene.holds(name, node, uuid, units, cores, namespace=namespace)
    scene.cluster.delete(Kind.PODS, "speech", "tts-0")
    scene.pod(pod_json("by-hand", units=6, cores=1, node="edge-1", phase="Running"))
    scene.pod(pod_json("llama-0", units=94, cores=50, priority=100), "research")
    scene.pod(pod_json("batch-0", cores=150, units=20), "research")


def furnished_use(scene: Scene) -> dict[str, Any]:
    """Return what exporters could report of the furnished cluster."""
    nodes = {}
    for node in scene.json("/snapshot")["nodes"]:
        pods = [
            {
                "card": share["card"],
                "namespace": pod["namespace"],
                "name": pod["name"],
                "used_mib": share["units"] * (150 if len(pod["name"]) % 2 else 230),
                "over": False,
            }
            for pod in node["pods"]
            for share in pod["shares"]
        ]
        cards = {}
        for one in node["cards"]:
            of_card = [pod for pod in pods if pod["card"] == one["uuid"]]
            used = 900 + sum(pod["used_mib"] for pod in of_card)
            # A sick card does not answer.
            known = {"used_mib": used, "busy_percent": 23 * len(of_card)}
            cards[one["uuid"]] = known if one["healthy"] else {}
        nodes[node["name"]] = {"cards": cards, "pods": pods}
    return {"v": 1, "nodes": nodes}


def refreshed(tab: Tab, expression: str) -> None:
    """Have the page look at once, instead of after some seconds."""
    tab.evaluate("look()")
    tab.wait_for(expression, "the news on the page")


def focused(tab: Tab) -> str:
    """Name what has the focus, by its id or else its tag."""
    return str(
        tab.evaluate("document.activeElement.id || document.activeElement.tagName")
    )
