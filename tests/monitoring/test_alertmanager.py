"""Alertmanager takes our configuration, and Discord gets what a person can read."""

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import yaml

from monitoring.alerts import GROUPS
from tests.monitoring.pages import PageAnswer, PageServer
from tests.testbed.fixtures import StartAlertmanager
from tests.testbed.manifests import FOLDER
from tests.testbed.prometheus import Alertmanager, Amtool

CONFIG = FOLDER / "monitoring" / "alertmanager.yaml"
CARD = {"NodeName": "n", "UUID": "GPU-0", "gpu": "0"}
WITHIN_S = 60.0
CONDITION = re.compile(r"\{\{ (?:with .*?|end) \}\}")
"""What leaves nothing in a text."""
MOST_TITLE, MOST_TEXT = 256, 4096
"""What Discord takes, in characters."""


class Discord:
    """Takes messages as Discord would; ``next`` gives each with its channel."""

    def __init__(self) -> None:
        self._arrived: Queue[tuple[str, bytes]] = Queue()
        take = lambda path, body: self._arrived.put((path, body))  # noqa: E731
        self.server = PageServer(
            lambda _: PageAnswer(404, "text/plain", b""), take=take
        )

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next message: its channel, and its one embed."""
        channel, message = self._arrived.get(timeout=WITHIN_S)
        (embed,) = json.loads(message)["embeds"]
        return channel.removeprefix("/"), embed

    def titled(self, title: str) -> dict[str, Any]:
        """The first embed of that title: what comes before it was not all yet."""
        return next(
            embed for _, embed in iter(self.next, None) if embed["title"] == title
        )


@pytest.fixture
def discord() -> Iterator[Discord]:
    made = Discord()
    with made.server:
        yield made


@pytest.fixture
def manager(
    alertmanager: StartAlertmanager, discord: Discord, tmp_path: Path
) -> Alertmanager:
    """The real one, with what we ship; its addresses are ours, and it waits less."""
    config = yaml.safe_load(CONFIG.read_text())
    for receiver in config["receivers"]:
        for channel in receiver.get("discord_configs", ()):
            channel["webhook_url"] = (
                f"http://{discord.server.address}/{receiver['name']}"
            )
    routes = [config["route"]]
    for route in routes:
        routes += route.get("routes", ())
        route |= {"group_wait": "0s", "group_interval": "1s"}
    path = tmp_path / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(config))
    return alertmanager(path)


def alert(name: str, severity: str, **labels: str) -> dict[str, Any]:
    labels = {"alertname": name, "severity": severity, **CARD, **labels}
    texts = {"summary": f"{name} on card 0 of n", "description": "Look at it."}
    return {"labels": labels, "annotations": texts}


def test_amtool_takes_it_as_it_is_shipped(amtool: Amtool) -> None:
    """With placeholders and no secret."""
    done = amtool.check_config(CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
    assert " - 4 receivers" in done.stdout
    receivers = yaml.safe_load(CONFIG.read_text())["receivers"]
    discord = [
        channel
        for receiver in receivers
        for channel in receiver.get("discord_configs", ())
    ]
    urls = {channel["webhook_url"] for channel in discord}
    assert urls == {"https://discord.com/api/webhooks/CHANNEL/TOKEN"}


def test_an_alert_arrives_and_its_end_too(
    manager: Alertmanager, discord: Discord
) -> None:
    """As an embed with a title and the rule's words; at its end in another colour."""
    lost = alert("VcudaGpuLost", "critical")
    manager.post([lost])
    channel, embed = discord.next()
    assert channel == "critical"
    assert embed["title"] == "[FIRING:1] VcudaGpuLost on n"
    assert embed["description"] == "**VcudaGpuLost on card 0 of n**\nLook at it.\n"
    now = datetime.now(UTC)
    began = now - timedelta(minutes=1)
    ended = {"startsAt": began.isoformat(), "endsAt": now.isoformat()}
    manager.post([{**lost, **ended}])
    channel, after = discord.next()
    assert (channel, after["title"]) == ("critical", "[RESOLVED] VcudaGpuLost on n")
    assert after["color"] != embed["color"]


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "Watchdog", "severity": "none"}, "nobody"),
        ({"alertname": "InfoInhibitor", "severity": "none"}, "nobody"),
        ({"alertname": "KubeAPIDown", "severity": "critical"}, "nobody"),
        ({"alertname": "Another", "page": "true"}, "nobody"),
        ({"alertname": "VcudaGpuXid", "page": "true"}, "pages"),
        ({"alertname": "VcudaExtenderDown", "severity": "critical"}, "critical"),
        ({"alertname": "VcudaHot", "severity": "warning"}, "warnings"),
        ({"alertname": "VcudaNothingFree", "severity": "info"}, "warnings"),
    ],
)
def test_only_what_is_ours_goes_to_our_channels(
    amtool: Amtool, labels: dict[str, str], receiver: str
) -> None:
    """The stack's alerts come to the same Alertmanager; one of them always fires."""
    words = [f"{key}={value}" for key, value in labels.items()]
    command = [amtool.program, "config", "routes", "test", f"--config.file={CONFIG}"]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [receiver]


def test_every_alert_has_a_route_and_its_words_fit() -> None:
    """It is known as ours by its name, and goes by its severity.

    Names put in for their places take as much room or less.
    """
    alerts = [alert for group in GROUPS for alert in group.alerts]
    assert {alert.severity for alert in alerts} == {"critical", "warning", "info"}
    for alert in alerts:
        assert alert.name.startswith("Vcuda")
        assert len(CONDITION.sub("", alert.summary)) <= 150, alert.name
        assert "query" in alert.cure or len(alert.cure) <= 330, alert.name


def test_of_a_card_that_is_gone_nothing_else_is_told(
    manager: Alertmanager, discord: Discord
) -> None:
    """Another card's warning is."""
    manager.post([alert("VcudaGpuLost", "critical")])
    assert discord.next()[0] == "critical"
    manager.post([alert("VcudaHot", "warning")])
    manager.post([alert("VcudaHot", "warning", NodeName="m", UUID="GPU-9")])
    _, embed = discord.next()
    assert embed["title"] == "[FIRING:1] VcudaHot on m"


def test_of_a_damaged_card_no_slowness_is_told(
    manager: Alertmanager, discord: Discord
) -> None:
    """Nor errors that are corrected yet; another card's are."""
    manager.post([alert("VcudaGpuXid", "critical", page="true")])
    assert discord.next()[0] == "pages"
    quiet = ("VcudaThrottled", "VcudaEcc")
    manager.post([alert(name, "warning") for name in quiet])
    manager.post([alert(name, "warning", NodeName="m", UUID="GPU-9") for name in quiet])
    titles = {discord.next()[1]["title"] for _ in quiet}
    assert titles == {f"[FIRING:1] {name} on m" for name in quiet}


def test_alerts_of_one_kind_on_one_node_are_one_message(
    manager: Alertmanager, discord: Discord
) -> None:
    """And those of many cards are still one that Discord takes."""
    many = [alert("VcudaHot", "warning", UUID=f"GPU-{n}") for n in range(60)]
    for body in many:
        body["annotations"] = {"summary": "Hot! " * 50, "description": "Look! " * 99}
    manager.post(many)
    embed = discord.titled("[FIRING:60] VcudaHot on n")
    assert embed["description"].endswith("\nThe first 8 of 60.")
    assert 3500 < len(embed["description"]) <= MOST_TEXT


def test_the_longest_name_of_a_node_fits(
    manager: Alertmanager, discord: Discord
) -> None:
    """A title that is too long would lose the message."""
    manager.post([alert("VcudaMemoryOverAllocation", "warning", NodeName="n" * 253)])
    _, embed = discord.next()
    assert 200 < len(embed["title"]) <= MOST_TITLE
