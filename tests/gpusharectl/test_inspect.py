"""The commands over HTTP on a small cluster, with their exit codes and completion."""

import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from gpushare.addresses import LOOPBACK
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.apiserver.api import ApiObjects
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpusharectl.access import reached
from gpusharectl.commands import for_kubectl, main
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.why import command
from tests.builders import bound_json, card, placement
from tests.gpusharectl.cluster_states import A, B, node_of, quota
from tests.gpusharectl.conftest import put
from tests.gpusharectl.exporter_pages import Shown, Use, page
from tests.gpusharectl.terminal import Terminal, kubeconfig_for
from tests.gpusharectl.top_states import exporter

WITHOUT_CODES = {"demo", "host-clean", "host-scheduler"}


def ran(kubeconfig: str, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--kubeconfig", kubeconfig])


def test_inspect(kubeconfig: str) -> None:
    """No extender pod is there, so the placements are computed here; -v says so."""
    assert "computed from pods" not in ran(kubeconfig, "inspect").output
    found = ran(kubeconfig, "inspect", "-v")
    assert found.exit_code == 0
    assert "2 nodes, 3 cards, 152 units (38 GiB): 131 allotted (86 %)" in found.output
    assert "computed from pods and nodes, because there is no" in found.output
    assert "default/app-1 50" in found.output
    assert "\x1b" not in found.output


@pytest.mark.parametrize("words", [["inspect", "-v"], ["why", "big"], ["top", "-v"]])
def test_into_a_pipe_nothing_is_wrapped_or_padded(
    kubeconfig: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a printed command can be copied, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "30")
    lines = ran(kubeconfig, *words).output.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    part = "app.kubernetes.io/name=gpushare-"
    command = [line for line in lines if part in line]
    assert all(line.strip().startswith("→ kubectl") for line in command)
    assert max(map(len, lines)) > 80


def test_inspect_one_namespace(kubeconfig: str) -> None:
    """Its pending pods too; the shell offers the names."""
    found = ran(kubeconfig, "inspect", "-n", "edge").output
    assert found.startswith("No pod of edge holds a part of a card.\n")
    assert "edge/lonely  requests 3 units" in found
    assert "default/" not in found
    data = orjson.loads(
        ran(kubeconfig, "inspect", "-n", "default", "-o", "json").output
    )
    assert data["namespace"] == "default"
    assert [pod["name"] for pod in data["pending"]] == ["big"]


@pytest.mark.parametrize("words", [["--watch"], ["-w", "-o", "json"]])
def test_only_a_terminal_can_be_watched(kubeconfig: str, words: Sequence[str]) -> None:
    found = ran(kubeconfig, "inspect", *words)
    assert found.exit_code == 2
    assert "--watch is for a terminal" in found.output


@pytest.mark.processes
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_watched_it_stays_on_the_terminal(kubeconfig: str, end: signal.Signals) -> None:
    """Until Ctrl-C; then the last values are left there."""
    words = ["inspect", "--watch", "--kubeconfig", kubeconfig]
    terminal = Terminal([sys.executable, "-m", "gpusharectl", *words])
    try:
        terminal.read_until("Ctrl-C to quit")
        terminal.read_until("default/app-1")
        terminal.send(end)
        assert terminal.end() == 0, terminal.said
    finally:
        terminal.close()
    _, ended, after = terminal.said.partition("\x1b[?1049l")
    assert ended
    assert "default/app-1" in after
    assert "Traceback" not in terminal.said


def test_inspect_one_node(kubeconfig: str) -> None:
    """Or a sentence with those that there are."""
    assert "node-1" not in ran(kubeconfig, "inspect", "--node", "node-2").output
    found = ran(kubeconfig, "inspect", "--node", "nod")
    assert found.exit_code == 1
    assert 'there is no node "nod"; there are: cp, node-1, node-2' in found.output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["big"], 3, "no card has 30 units free; the most is 9"),
        (["default/big"], 3, "To run it: request at most 9 units (2.25 GiB)"),
        (["app-1"], 0, "default/app-1 is on node-1, card 0"),
        (["-n", "edge", "lonely"], 3, "edge/lonely requests 3 units"),
        (["plain"], 0, "requests no part of a card"),
        (["lonely"], 1, "there is no pod default/lonely. Did you mean edge/lonely?"),
        (["app-9"], 1, "Did you mean default/app-3"),
        (["zzz"], 1, "there is no pod default/zzz."),
        (["-n", "edge", "default/big"], 2, "is not in the namespace edge"),
        (["a/b/c"], 2, "give NAME or NAMESPACE/NAME"),
        (["edge/"], 2, "give NAME or NAMESPACE/NAME"),
        ([], 2, "Missing argument 'POD'"),
    ],
)
def test_why(kubeconfig: str, words: Sequence[str], code: int, said: str) -> None:
    """The sentence, and the exit code that is documented."""
    found = ran(kubeconfig, "why", *words)
    assert found.exit_code == code
    assert said in " ".join(found.output.split())


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_as_data(kubeconfig: str, output: str) -> None:
    """The same in both; nothing else on standard output."""

    def data(*words: str) -> tuple[Any, int]:
        found = ran(kubeconfig, *words, "-o", output)
        load: Any = orjson.loads if output == "json" else yaml.safe_load
        return load(found.stdout), found.exit_code

    seen, _ = data("inspect")
    assert seen["totals"]["allotted_units"] == 131
    assert seen["books"]["from"] == "pods and nodes"
    for pod in ("big", "app-1", "plain", "zzz"):
        answer, code = data("why", pod)
        assert (answer["pod"], answer["code"]) == (f"default/{pod}", code)
    seen, _ = data("top", "--sort", "sm")
    assert seen["totals"]["used_mib"] is None
    assert [pod["name"] for pod in seen["pods"]][:2] == ["app-1", "app-2"]
    assert [node["told"] for node in seen["nodes"]] == [False, False]


@pytest.mark.parametrize("command", ["cordon-card", "uncordon-card", "clear-card"])
@pytest.mark.parametrize(
    ("words", "code"), [(["node-2"], 2), (["node-2", "9"], 1), (["nod", "0"], 1)]
)
def test_orders_that_cannot_be(
    kubeconfig: str, command: str, words: Sequence[str], code: int
) -> None:
    """A card must be named, and be there."""
    assert ran(kubeconfig, command, *words).exit_code == code


@pytest.mark.parametrize(
    "words", [["inspect"], ["top"], ["why", "p"], ["cordon-card", "n", "0"]]
)
def test_no_cluster_is_a_sentence(words: Sequence[str], tmp_path: Path) -> None:
    found = ran(str(tmp_path / "none"), *words)
    assert found.exit_code == 1
    assert "there is no file" in found.output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Forbidden("pods is forbidden"), "pods is forbidden; name the administrator's"),
        (Unavailable("no answer"), "no answer"),
    ],
)
def test_what_the_api_server_refuses_is_a_sentence(
    kubeconfig: str, error: ClusterError, words: str
) -> None:
    """On the way, after it had answered at first."""
    with pytest.raises(click.ClickException, match=words), reached(kubeconfig, None):
        raise error


@pytest.mark.parametrize("name", sorted(main.commands.keys() - WITHOUT_CODES))
def test_help_tells_the_exit_codes(name: str) -> None:
    found = CliRunner().invoke(main, [name, "--help"])
    assert "Exit codes: 0" in found.output


def offered(kubeconfig: str, *words: str) -> list[str]:
    shell = ShellComplete(main, {}, "gpusharectl", "")
    *before, begun = words
    where = [before[0], "--kubeconfig", kubeconfig, *before[1:]]
    return [one.value for one in shell.get_completions(where, begun)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["why", "b"], ["big"]),
        (["why", "lon"], ["edge/lonely"]),
        (["why", "e"], ["edge/lonely"]),
        (["why", "default/b"], ["default/big"]),
        (["why", "-n", "e"], ["edge"]),
        (["why", "-n", "edge", ""], ["lonely"]),
        (["inspect", "--node", ""], ["node-1", "node-2"]),
        (["inspect", "-n", "e"], ["edge"]),
        (["top", "-n", ""], ["default", "edge"]),
        (["top", "--namespace", "e"], ["edge"]),
        (["top", "--sort", "s"], ["sm"]),
        (["cordon-card", "node-"], ["node-1", "node-2"]),
        (["check-node", "c"], ["cp"]),
        (["cordon-card", "c"], []),
        (["cordon-card", "node-2", ""], ["0", A, "1", B]),
        (["cordon-card", "node-2", "GPU-7"], [B]),
        (["cordon-card", "nod", ""], []),
    ],
)
def test_the_shell_offers_names(
    kubeconfig: str, words: Sequence[str], found: list[str]
) -> None:
    """Of pods, nodes, that node's cards, and namespaces of pods with our resources."""
    assert offered(kubeconfig, *words) == found


def test_the_shell_offers_nothing_where_nobody_answers(tmp_path: Path) -> None:
    """And no error appears between the words that are being typed."""
    assert offered(str(tmp_path / "none"), "why", "") == []


def test_the_shell_does_not_wait_for_a_cluster_that_is_silent(tmp_path: Path) -> None:
    """It has accepted the connection, and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as silent:
        server = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        place = kubeconfig_for(server, tmp_path / "kubeconfig")
        assert offered(str(place), "why", "") == []


def test_kubectl_asks_for_its_plugins_words(kubeconfig: str) -> None:
    """As cobra has it: a line for each, with its meaning, and a last word."""
    words = ["cordon-card", "--kubeconfig", kubeconfig, "node-2", "GPU-7"]
    assert for_kubectl(main, words) == f"{B}\tTesla P4\n:4"
    assert for_kubectl(main, ["insp"]).startswith("inspect\t")


@pytest.mark.parametrize(
    "words", [["kubectl_complete-vcuda"], ["kubectl-vcuda", "__complete"]]
)
def test_words_are_completed_under_both_names(
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its own, and the one that scripts for kubectl call."""
    monkeypatch.setattr(sys, "argv", [*words, "insp"])
    with pytest.raises(SystemExit):
        main.run()
    assert capsys.readouterr().out.startswith("inspect\t")


@pytest.mark.parametrize("name", ["gpusharectl", "kubectl-vcuda"])
def test_both_names_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage line says the one by which it was called."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{name}", "why", "--help"])
    with pytest.raises(SystemExit):
        main.run()
    usage = f"Usage: {name.replace('-', ' ')} why"
    assert capsys.readouterr().out.startswith(usage)


def test_a_container_that_is_not_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``inspect`` and ``why`` ask the exporters of nodes with a tier, and no others."""
    made, asked = Embedded(), list[str]()
    for name, tier in {"limited": "preload", "free": "none"}.items():
        cards = encode_cards([card(0, uuid=name)], tier)
        body = node_of(name, card(0), annotations={names.CARDS: cards})
        made.create(Kind.NODES, body)
        put(made, bound_json(placement(f"on-{name}", name, 4, 1, node=name)))
        put(made, exporter(name))
    tiered = {"metadata": {"annotations": {names.ISOLATION: "preload"}}}
    made.patch(Kind.PODS, "default", "on-limited", tiered)
    answer = page(Shown("limited", uses=(Use("on-limited", held=0),)))

    def fetch(_: ApiObjects, namespace: str, pod: str, port: int, path: str) -> bytes:
        asked.append(pod)
        return answer

    monkeypatch.setattr(ApiObjects, "fetch", fetch)
    what = "isolation tier preload does not hold its container main to its share"
    with ApiServerOnLoopback(made) as server:
        config = str(server.kubeconfig(tmp_path / "kubeconfig"))
        shown = ran(config, "inspect", "-o", "json").stdout
        told = {each["about"]: each for each in orjson.loads(shown)["warnings"]}
        assert what in told["default/on-limited"]["what"]
        end = "kubectl describe pod -n default on-limited"
        assert told["default/on-limited"]["do"].endswith(end)
        explained = orjson.loads(ran(config, "why", "on-limited", "-o", "json").stdout)
        assert [what in each for each in explained["warnings"]] == [True]
        mistyped = (quota("default", hard={"baidu.com/vcuda-core": "1"}, used={}),)
        with monkeypatch.context() as patched:
            patched.setattr(command, "read_quotas", lambda *_: mistyped)
            shown = ran(config, "why", "on-limited", "-o", "json").stdout
        of_quota, of_container = orjson.loads(shown)["warnings"]
        assert of_quota.startswith("quota default/gpu: keys that count nothing")
        assert what in of_container
        assert set(asked) == {"gpushare-exporter-limited"}
        for held in (1, None):
            answer = page(Shown("limited", uses=(Use("on-limited", held=held),)))
            assert what not in ran(config, "inspect", "-o", "json").stdout
        explained = orjson.loads(ran(config, "why", "on-limited", "-o", "json").stdout)
        assert explained["warnings"] == []
